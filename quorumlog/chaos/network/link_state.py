"""The rules in force on one directed link, and their combined effect. Pure."""

from typing import Final

from quorumlog.chaos.faults.links import (
    Cut,
    Delay,
    DelayRequest,
    DropReply,
    DropRequest,
    LinkRule,
    Rate,
    Refuse,
)
from quorumlog.chaos.network.answer_rules import AnswerBook, Chance, ErrorRule

_MILLION: Final = 1_000_000
_NO_RULES: Final[list[ErrorRule]] = []


class LinkState:
    """The rules in force on one link: delays add up, and the lowest rate counts."""

    def __init__(self, chance: Chance, book: AnswerBook | None = None) -> None:
        """`book`: of the rules with answers, which links share."""
        self.chance: Final = chance
        self.book: Final = AnswerBook() if book is None else book
        self._rules: Final[dict[str, LinkRule]] = {}
        self._counted: Final[dict[str, ErrorRule]] = {}  # the rules with answers
        self.is_cut = False
        self.refuses = False
        self.is_plain = True  # no rule delays, limits or picks messages
        self.bytes_per_s: int | None = None
        self._delays: list[Delay] = []
        self._picks: list[DropRequest | DelayRequest | DropReply] = []
        self.answers: list[ErrorRule] = []  # in the order of their begin
        self._answers_to: dict[str, list[ErrorRule]] = {}  # by API

    def impose(self, rule: LinkRule) -> None:
        """Impose the rule."""
        self._end(rule.id)
        self._rules[rule.id] = rule
        if (counted := self.book.imposed(rule)) is not None:
            self._counted[rule.id] = counted
        self._sum_up()

    def lift(self, rule_id: str) -> bool:
        """Lift the rule; return whether it was in force."""
        was_in_force = rule_id in self._rules
        self._end(rule_id)
        self._sum_up()
        return was_in_force

    def _end(self, rule_id: str) -> None:
        self._rules.pop(rule_id, None)
        if (counted := self._counted.pop(rule_id, None)) is not None:
            self.book.lifted(counted)

    def _sum_up(self) -> None:
        effects = [rule.effect for rule in self._rules.values()]
        self.is_cut = any(isinstance(effect, Cut) for effect in effects)
        self.refuses = any(isinstance(effect, Refuse) for effect in effects)
        rates = [effect.bytes_per_s for effect in effects if isinstance(effect, Rate)]
        self.bytes_per_s = min(rates, default=None)
        self._delays = [effect for effect in effects if isinstance(effect, Delay)]
        self._picks = [
            effect
            for effect in effects
            if isinstance(effect, DropRequest | DelayRequest | DropReply)
        ]
        self.answers = [*self._counted.values()]
        self._answers_to = {
            api: [rule for rule in self.answers if rule.effect.api == api]
            for api in {rule.effect.api for rule in self.answers}
        }
        self.is_plain = not (self.is_cut or rates or self._delays or self._picks)

    def concerning(self, api: str) -> list[ErrorRule]:
        """Return the rules with answers to requests of this kind that may still match.

        It is the same list until they change.
        """
        rules = self._answers_to.get(api, _NO_RULES)
        for rule in rules:
            if rule.is_spent:
                rules = self._answers_to[api] = [one for one in rules if not one.is_spent]
                break
        return rules

    def delay_s(self) -> float:
        """Draw the delay of the next bytes."""
        if self.is_plain:
            return 0.0
        return sum(
            (delay.min_us + self.chance() * delay.spread_us) / _MILLION for delay in self._delays
        )

    def drops_request(self, api: str) -> bool:
        """Draw whether this request is lost."""
        return self._meets(DropRequest, api)

    def drops_reply(self, api: str) -> bool:
        """Draw whether the reply to this request is lost."""
        return self._meets(DropReply, api)

    def request_delay_s(self, api: str) -> float:
        """Return the delay of this request, in addition to `delay_s`."""
        late = [pick for pick in self._picks if isinstance(pick, DelayRequest) and pick.api == api]
        return sum(pick.us for pick in late) / _MILLION

    def _meets(self, kind: type[DropRequest] | type[DropReply], api: str) -> bool:
        return any(
            isinstance(pick, kind) and pick.api == api and self.chance() * _MILLION < pick.share_ppm
            for pick in self._picks
            if not isinstance(pick, DelayRequest)
        )
