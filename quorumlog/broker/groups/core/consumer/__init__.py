"""Pure: groups of the consumer protocol (KIP-848).

A `ConsumerGroupCoordinator` is a `Coordinator` like that of the classic groups, whose contract
(`groups/core/__init__.py`) holds here, too, with these differences.

Drivers. `ConsumerSide` (`groups/core/consumer_side.py`), which writes to the log of a
`GroupCoordinator` that has classic groups, too; tests.

Topics. The driver changes the `Topics` that it gave to the coordinator, then feeds `TopicsChanged`.
A coordinator that is loaded looks at its topics by itself, with the next heartbeat of a member.

Effects: `AppendRecords`, `AnswerRequest`, `MakeTarget`. Events: `RequestReceived`, `WriteEnded`,
`TopicsChanged`, `TargetMade`, `BecameLeader` (changes nothing), `Ticked`.

The rules, each in a module: `admission` (which heartbeats are served), `membership`, `assignors`,
`reconciliation`, `offsets` (who may commit), `descriptions`, `conversion` (from and to a classic
group). `heartbeats` calls them in order, and `group` is what their records say.

A member of the classic protocol in a consumer group: `classic_members`.
"""
