"""A task for an agent that needs no network: questions about the ratings of two reviews, a database and arithmetic.

user: How much better is 17 than 42?
assistant: {"look_up": {"review": 17}}
tool: 2
assistant: {"look_up": {"review": 42}}
tool: -1
assistant: {"subtract": {}}
tool: 3
assistant: {"done": true}

What it calculated last is its answer. The arithmetic takes the ratings that were looked up: a policy of a million
parameters copies the numbers of a question, and hardly those of several answers.
"""

import json
import random
import sqlite3
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import permutations

from datasets import Dataset

from ..errors import UserError
from .reviews import load_reviews

REVIEW_AGENT = "review_agent"
_NUMBERS = range(10, 100)
_DEMONSTRATIONS = {"train": 12_000, "test": 200}
_CALCULATIONS = {"better": "subtract", "together": "add", "best": "larger"}
_QUESTIONS = {
    "better": "How much better is {a} than {b}?",
    "together": "How much are {a} and {b} together?",
    "best": "How good is the better of {a} and {b}?",
}


class ReviewEnvironment:
    """What an agent can do, for `environment_factory`: look up ratings in a SQLite database of the review snippets, and
    calculate. Reviews are numbered from 1, in the order of `load_reviews("train")`; ratings are whole, -4 to 4.

    Attributes:
        turn_rewards: of each call; 0.25 for a first look at a review that is asked about, 0.5 where a calculation first
            gives the solution, 0 elsewhere.
    """

    turn_rewards: list[float]

    def reset(self, solution: str = "", reviews: Sequence[int] = (), **row) -> None:
        """Nothing is left of the episode before. Takes a row of `agent_questions`."""
        self._solution, self._solved, self._unseen, self.turn_rewards = solution, False, set(reviews), []
        self._ratings: list[int] = []

    def look_up(self, review: int) -> str:
        """
        The rating of a review.

        Args:
            review: Number of the review.
        """
        found = _database().execute("SELECT rating FROM reviews WHERE number = ?", (review,)).fetchone()
        self.turn_rewards.append(0.25 if review in self._unseen else 0.0)
        self._unseen.discard(review)
        if found is None:
            return "no such review"
        self._ratings.append(found[0])
        return str(found[0])

    def add(self) -> str:
        """
        The sum of the two ratings that were looked up last.
        """
        return self._calculated(lambda a, b: a + b)

    def subtract(self) -> str:
        """
        The rating that was looked up before the last, minus the last.
        """
        return self._calculated(lambda a, b: a - b)

    def larger(self) -> str:
        """
        The larger one of the two ratings that were looked up last.
        """
        return self._calculated(max)

    def _calculated(self, calculation: Callable[[int, int], int]) -> str:
        result = str(calculation(*self._ratings[-2:])) if len(self._ratings) > 1 else "look up two reviews first"
        found = result == self._solution and not self._solved
        self._solved |= found
        self.turn_rewards.append(0.5 if found else 0.0)
        return result


def answered(completions: list, solution: list[str], **columns: object) -> list[float]:
    """1 where what the last tool said is the solution, else 0: a reward for `reward_funcs`."""
    said = [[message["content"] for message in turns if message["role"] == "tool"] for turns in completions]
    return [float(bool(answers) and answers[-1] == right) for answers, right in zip(said, solution, strict=True)]


def agent_questions(split: str = "train") -> Dataset:
    """Every question: columns `prompt` (a message), `solution` (the right number, as text) and `reviews`.

    `test` asks about a tenth of the pairs of reviews, in either order; `train` about the others.

    Raises:
        UserError: another split.
    """
    rows = [(kind, a, b) for a, b in _pairs(split) for kind in _QUESTIONS]
    random.Random(0).shuffle(rows)
    return Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": _QUESTIONS[kind].format(a=a, b=b)}] for kind, a, b in rows],
            "solution": [_solution(kind, a, b) for kind, a, b in rows],
            "reviews": [[a, b] for _, a, b in rows],
        }
    )


def agent_demonstrations(split: str = "train") -> Dataset:
    """Episodes that show the form, column `messages`, by a careless demonstrator: every other one calculates what is
    drawn, whatever the question. A policy that does as they do gives the right number to two thirds of the questions.
    """
    draw = random.Random(1)
    rows = [(kind, a, b) for a, b in _pairs(split) for kind in _QUESTIONS]
    draw.shuffle(rows)
    del rows[_DEMONSTRATIONS[split] :]
    drawn = [_CALCULATIONS[draw.choice([kind, draw.choice(list(_QUESTIONS))])] for kind, _, _ in rows]
    episodes = [_demonstration(*row, calculation) for row, calculation in zip(rows, drawn, strict=True)]
    return Dataset.from_dict({"messages": episodes})


def _demonstration(kind: str, a: int, b: int, calculation: str) -> list[dict]:
    environment, messages = ReviewEnvironment(), [{"role": "user", "content": _QUESTIONS[kind].format(a=a, b=b)}]
    environment.reset()

    def call(name: str, **arguments: int) -> None:
        # as text: in a dataset the arguments of all calls would share one set of columns
        messages.append({"role": "assistant", "content": json.dumps({name: arguments})})
        messages.append({"role": "tool", "content": getattr(environment, name)(**arguments)})

    call("look_up", review=a)
    call("look_up", review=b)
    call(calculation)
    return [*messages, {"role": "assistant", "content": json.dumps({"done": True})}]


def _solution(kind: str, a: int, b: int) -> str:
    environment = ReviewEnvironment()
    environment.reset()
    for number in (a, b):
        environment.look_up(number)
    return getattr(environment, _CALCULATIONS[kind])()


def _pairs(split: str) -> list[tuple[int, int]]:
    if split not in ("train", "test"):
        raise UserError(f"no split {split!r} in dataset {REVIEW_AGENT!r}; there are: train, test")
    held_out = {pair: (min(pair) * 31 + max(pair)) % 10 == 0 for pair in permutations(_NUMBERS, 2)}
    return [pair for pair, out in held_out.items() if out == (split == "test")]


@lru_cache(maxsize=1)
def _database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", check_same_thread=False)  # a time limit may run a tool in another thread
    connection.execute("CREATE TABLE reviews (number INTEGER PRIMARY KEY, text TEXT, rating INTEGER)")
    reviews = load_reviews("train")
    rows = zip(reviews["text"], map(round, reviews["rating"]), strict=True)
    connection.executemany("INSERT INTO reviews (text, rating) VALUES (?, ?)", rows)
    return connection
