"""Learns from episodes of a game, with the garbage collector off to make step times even.

The problem: an episode refers to its moves and a move to its episode. Only the garbage collector
can free such a reference cycle, and it never runs.

Run: ``python examples/leaks/episodes_gc_off.py [EPISODES]``
"""

import gc
import sys

import torch
from torch import Tensor, nn


class Move:
    """One move of an episode."""

    def __init__(self, episode: "Episode", board: Tensor, reward: float) -> None:
        self.episode = episode
        self.board = board
        self.reward = reward

    def value(self) -> float:
        """Return the result of the episode from this move on."""
        moves = self.episode.moves
        return sum(move.reward for move in moves[moves.index(self) :])


class Episode:
    """One game."""

    def __init__(self) -> None:
        self.moves: list[Move] = []

    def play(self, length: int) -> None:
        """Play at random."""
        for _ in range(length):
            board = torch.randn(6, 32, 32)  # allocated here
            self.moves.append(Move(self, board, board[0, 0, 0].item()))  # fault: a reference cycle


def main(episodes: int) -> None:
    """Play and learn."""
    torch.manual_seed(13)
    gc.disable()
    critic = nn.Sequential(nn.Flatten(), nn.Linear(6 * 32 * 32, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
    for _ in range(episodes):
        episode = Episode()
        episode.play(12)
        boards = torch.stack([move.board for move in episode.moves])
        values = torch.tensor([move.value() for move in episode.moves])
        loss = (critic(boards).squeeze(1) - values).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{episodes} episodes, last loss {loss.item():.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 120)
