"""Read the tree that p4c writes of a program after its front end (frontend-ir.json)."""

from __future__ import annotations

from collections.abc import Iterator
from os.path import normpath
from typing import Any, NamedTuple

Node = dict[str, Any]


class Key(NamedTuple):
    """The value with which a branch of a `select`, or a constant entry of a table, compares one key."""

    value: int
    mask: int
    """Bits of the key that are compared."""
    width: int
    """Bits of the key; 0 for a key that is not compared."""


class FrontEnd:
    """A program's tree. A node that occurs again is written as its `Node_ID` only."""

    def __init__(self, tree: Any) -> None:
        self._by_id: dict[int, Node] = {}
        left = [tree]
        while left:
            item = left.pop()
            if isinstance(item, dict):
                if "Node_Type" in item:
                    self._by_id[item["Node_ID"]] = item
                left += item.values()
            elif isinstance(item, list):
                left += item
        self._objects = self._list(tree, "objects")

    def branches(self, parser: str) -> Iterator[tuple[list[Key], str]]:
        """Yield keys and source text of every branch of every `select` in a parser."""
        for node in self._objects:
            if node["Node_Type"] != "P4Parser" or node["name"] != parser:
                continue
            for state in self._list(node, "states"):
                select = self._at(state, "selectExpression") if "selectExpression" in state else {}
                for case in self._list(select, "selectCases") if "selectCases" in select else []:
                    yield self._keys(self._at(case, "keyset")), _source(case)

    def tables(self) -> Iterator[tuple[str, list[list[Key]]]]:
        """Yield name and constant entries of every table."""
        for table in self._locals("P4Table"):
            entries = [
                self._keys(self._at(entry, "keys"))
                for property_ in self._list(table, "properties", "properties")
                if property_["name"] == "entries"
                for entry in self._list(property_, "value", "entries")
            ]
            yield self._name(table), entries

    def register_actions(self) -> Iterator[tuple[str, str]]:
        """Yield the names of a register and of an action of it, for all of them."""
        instances = self._locals("Declaration_Instance")
        names = {instance["name"]: self._name(instance) for instance in instances}
        for instance in instances:
            type_ = self._at(instance, "type")
            if "baseType" in type_ and self._at(type_, "baseType", "path")["name"] == "RegisterAction":
                register = self._at(self._list(instance, "arguments")[0], "expression", "path")
                yield names[register["name"]], instance["name"]

    def _locals(self, kind: str) -> list[Node]:
        """Return the declarations of a kind in all controls."""
        controls = [node for node in self._objects if node["Node_Type"] == "P4Control"]
        found = [item for control in controls for item in self._list(control, "controlLocals")]
        return [item for item in found if item["Node_Type"] == kind]

    def _at(self, node: Node, *path: str) -> Node:
        for step in path:
            node = self._full(node[step])
        return node

    def _list(self, node: Node, *path: str) -> list[Node]:
        return [self._full(item) for item in self._at(node, *path)["vec"]]

    def _full(self, node: Node) -> Node:
        return self._by_id.get(node.get("Node_ID", -1), node)

    def _name(self, declaration: Node) -> str:
        """Return the name by which controllers know a declaration."""
        for annotation in self._list(declaration, "annotations"):
            if annotation["name"] == "name":
                return str(self._list(annotation, "body", "value")[0]["value"])
        return str(declaration["name"])

    def _keys(self, keyset: Node) -> list[Key]:
        return [
            self._key(key)
            for key in (self._list(keyset, "components") if "components" in keyset else [keyset])
        ]

    def _key(self, key: Node) -> Key:
        if key["Node_Type"] == "DefaultExpression":
            return Key(0, 0, 0)
        if key["Node_Type"] == "Mask":
            value, mask = self._at(key, "left"), self._at(key, "right")
            return Key(value["value"], mask["value"], self._at(value, "type")["size"])
        width = self._at(key, "type")["size"]
        return Key(key["value"], (1 << width) - 1, width)


def _source(node: Node) -> str:
    where = node["Source_Info"]
    return f"`{where['source_fragment']}` ({normpath(where['filename'])}, line {where['line']})"
