"""An admission takes no more Python calls than it did: counts, which hardly depend on the machine."""

from contextlib import ExitStack

from primary import Primary
from recorded_calls import CallRecorder, Way

from peelsum.control.admission import Placement, admit
from peelsum.control.description import parse_description
from peelsum.softswitch.p4runtime import serve

JOB = """
[job]
id = 1
workers = 4
window = 64
[switch]
pipeline_lanes = 32
[ports]
server = 5
workers = [1, 2, 3, 4]
"""
#: A few calls more than usual, as the end of a request is handled while the next one is sent.
MOST = Way(calls=602, files=17, switches=194)


def test_no_more_calls_files_and_switches_than_before(device, files):
    """To one softswitch, in the controller and in the switch's server together; no slots are freed."""
    device.ports, job = range(1, 9), parse_description(JOB)
    with CallRecorder() as recorder, ExitStack() as stack:  # the server's threads start later
        server = serve(device, "127.0.0.1:0")
        stack.callback(server.stop)
        controller = stack.enter_context(Primary(server.address))
        controller.load_pipeline(*files)
        with recorder.recording():
            admit(job, [Placement(controller.session, *job.plans())], 1.0, free=False)
    assert recorder.way().is_within(MOST), recorder.way()
