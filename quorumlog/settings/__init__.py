"""The settings of topics and of nodes: one row each, and everything reads the row.

A row has a setting's name, type, default, check and documentation. The rows of topics are the
attributes of `topics.TopicConfig`; each names the setting of a node that holds for topics that do
not set it. The rows of nodes are the fields of the dataclasses that their readers take, made by
`servers.integer`, `long`, `flag` and `behind`. The controller checks by the rows, brokers go by
them and describe them, and docs/configuration.md is written from them.

To add a setting, add its row, its reader, and the test that the reader goes by it.
"""
