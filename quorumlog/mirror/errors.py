"""Errors that end a mirror. It waits while an error of a cluster may pass, and tries again."""


class MirrorError(Exception):
    """A mirror cannot continue. The message names the cause and the remedy."""


class MirrorRefused(MirrorError):
    """The settings and the two clusters do not fit together; nothing was copied."""


class MirrorLoop(MirrorRefused):
    """The target is mirrored back to the source under the same names: records would circulate."""


class MirrorFenced(MirrorError):
    """Another mirror with the same alias has started on the target; this mirror has ended.

    With `exactly_once`, no record of this mirror became visible after the other mirror started.
    """


class TopicsStopped(MirrorError):
    """Topics are not copied any more, for example because they were re-created at the source.

    `reasons`: by the name at the source. The other topics were copied.
    """

    def __init__(self, reasons: dict[str, str]) -> None:
        self.reasons = reasons
        super().__init__("; ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items())))
