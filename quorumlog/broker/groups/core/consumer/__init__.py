"""Pure: groups of the consumer protocol (KIP-848). Used by nothing yet.

A `ConsumerGroupCoordinator` is a `Coordinator` like that of the classic groups, whose contract
(`groups/core/__init__.py`) holds here, too, with these differences.

Topics. The driver changes the `Topics` that it gave to the coordinator, then feeds `TopicsChanged`.
A coordinator that is loaded looks at its topics by itself, with the next heartbeat of a member.

Effects: `AppendRecords`, `AnswerRequest`. Events: `RequestReceived`, `WriteEnded`, `TopicsChanged`,
`BecameLeader` (changes nothing), `Ticked`.

The rules, each in a module: `admission` (which heartbeats are served), `membership`, `assignors`,
`reconciliation`, `offsets` (who may commit), `descriptions`, `conversion` (from and to a classic
group). `heartbeats` calls them in order, and `group` is what their records say.

What remains to be joined: `GroupCoordinator` has one table of classic groups. It must own a
coordinator of this kind, give it the records and the heartbeats that are its own, ask `offsets`
before a commit to a group of this kind, and let `Rewrite` write `CommittedGroups` as well.
"""
