"""The broker: Kafka's protocol in front of replicated partitions, by subject.

Upper floors import lower ones (an import contract holds it):
`handlers` one file per API, `server` the socket and the request's context, `replicas.py` puts the
parts of one broker together, `groups`, `fetching`, `following` and `controller_requests` are one
subject each, `partitions` is what they stand on. A new subject, such as transactions, is a new
package beside `groups`. In each subject `core` decides and is pure, `log` needs only a `Disk`, and
`io` has the sockets, tasks and threads.
"""
