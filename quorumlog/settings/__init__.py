"""The settings of topics and of nodes: one row each, the only definition of a setting.

A row has a setting's name, type, default, check and documentation. The rows of topics are the
attributes of `topics.TopicConfig`; each names the setting of a node that applies to topics that do
not set it. The rows of nodes are the fields of the dataclasses that their readers take, created by
`servers.integer`, `long`, `flag` and `behind`. The controller validates values by the rows, brokers
read and describe values by them, and docs/configuration.md is generated from them.

To add a setting, add its row, its reader, and a test of the reader.
"""
