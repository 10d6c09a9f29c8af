"""The broker: Kafka's protocol in front of replicated partitions, by subject.

Upper floors import lower ones (an import contract checks it): `handlers` has one file per API,
`responses` their shared parts, `server` the sockets and the context of a request; `replicas.py`
assembles the parts of one broker. `groups`, `transactions`, `following` and `controller_requests`
are one subject each, `coordination` is the shared part of the coordinators of internal topics,
`fetching` reads for consumers and followers, and all of them stand on `partitions`. A new subject
is a new package beside `groups`. In each subject `core` decides and is pure, `log` needs only a
`Disk`, and `io` has the sockets, tasks and threads.
"""
