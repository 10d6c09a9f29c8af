"""Pure: groups of the consumer protocol (KIP-848).

The contract of the `GroupCoordinator` (`groups/core/__init__.py`) holds for a
`ConsumerGroupCoordinator`, too, with these differences.

Drivers. `ConsumerGroups` (`groups/core/consumer_groups.py`), which writes to the log of a
`GroupCoordinator` that has classic groups, too; tests.

Topics. The driver changes the `Topics` that it gave to the coordinator, then feeds `TopicsChanged`.
After a load, the next heartbeat of a member refreshes the topics of its group without that event.

Effects: `AppendRecords`, `AnswerRequest`, `MakeTarget`. Events: `RequestReceived`, `WriteEnded`,
`TopicsChanged`, `TargetMade`, `Ticked`.

The rules, each in a module: `admission` (which heartbeats are served), `membership`, `assignors`,
`targets` and `awaited_targets`, `reconciliation`, `offsets` (which members may commit),
`descriptions`, `conversion` (from and to a classic group). `heartbeats` calls them in order;
`group` is the state that their records define.

`classic_members` serves members of the classic protocol in a consumer group.
"""
