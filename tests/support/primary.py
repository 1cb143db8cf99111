"""A primary of one switch for as long as a test needs it, whoever holds its jobs."""

import time

from peelsum.control import admission, open_session, tables
from peelsum.control.admission import Placement
from peelsum.control.session import pipeline_schema


class Primary:
    """The session of a switch's primary, and the steps of the control plane over it."""

    def __init__(self, address, *, election_id=1, patience_s=0.0, **options):
        """options: as for `open_session`."""
        self.session, self.clock = open_session(address, **options), time.time
        try:
            self.session.become_primary(election_id, patience_s=patience_s)
        except BaseException:
            self.session.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.session.close()

    def load_pipeline(self, json_path, p4info_path):
        """Commit a pipeline unless it runs; return whether it was committed."""
        schema = pipeline_schema(json_path, p4info_path)
        if self.session.runs(schema):
            return False
        self.session.commit(schema)
        return True

    def admit(self, description, *, secret=None):
        (plan,) = description.plans()
        return admission.admit(description, [Placement(self.session, plan)], self.clock(), secret=secret)

    def evict(self, job_id):
        admission.evict(self.session, job_id)

    def jobs(self):
        return tables.read_jobs(self.session)

    def verdicts(self):
        return tables.read_verdicts(self.session)

    def status(self):
        return tables.read_status(self.session)
