"""The broker: Kafka's protocol in front of replicated partitions, by subject.

Upper floors import lower ones (an import contract holds it):
`handlers` one file per API, `responses` what several of them share, `server` the socket and the
request's context, `replicas.py` puts the parts of one broker together, `groups`, `following` and
`controller_requests` are one subject each, `coordination` is what coordinators of internal topics
share, `fetching` reads for consumers and followers, `partitions` is what they stand on. A new
subject, such as transactions, is a new package beside `groups`, on `coordination`. In each subject
`core` decides and is pure, `log` needs only a `Disk`, and `io` has the sockets, tasks and threads.
"""
