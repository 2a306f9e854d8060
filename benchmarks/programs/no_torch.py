"""A program without torch: it counts primes."""

N_NUMBERS = 30_000

print(sum(all(n % k for k in range(2, int(n**0.5) + 1)) for n in range(2, N_NUMBERS)))
