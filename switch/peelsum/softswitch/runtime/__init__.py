"""Runs generated code: memory, tables, registers, queues, and the switch that holds them."""
