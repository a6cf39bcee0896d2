"""Chance follows from a seed and a name alone."""

from bursar.sim.rng import Chance


def test_a_seed_means_the_same_in_every_process() -> None:
    """Whatever the hashes of that process are: these numbers were drawn in another one."""
    chance = Chance(7).stream("tenant")

    assert [3, 3, 3, 3, 1, 2, 3, 3, 3, 2, 3, 1] == [
        chance.pick({1: 1, 2: 3, 3: 6}) for _ in range(12)
    ]
    assert 0.775599518470933 == Chance(7).part()
