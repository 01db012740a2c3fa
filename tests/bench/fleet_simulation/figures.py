"""Prints the tables of docs/operate/fleet-size.md.

python3 tests/bench/fleet_simulation/figures.py [TABLE...] [--jobs N] [--writes N] [--reads N] [--queue-ms N] [--round-trip-ms N]

All tables take about ten minutes. --jobs is the number of simulated jobs of a row, at most.
"""

import argparse
import bisect
import collections
import itertools
import math
import random

from model import Costs, Fleet, Rules, agent_duration, agent_mean, percentile, ring_shares

PLACES = 4
SIZES = [10, 100, 1000, 10_000]
# Name, duration of a command, and its mean.
AGENTS = ("agents", agent_duration, agent_mean())


def exponential(mean):
    return (f"{mean:g} s", lambda draw: draw.expovariate(1 / mean), mean)


def seconds(value):
    if math.isnan(value):
        return "–"
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def count(value):
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def percent(value):
    return f"{value * 100:.2g} %" if value < 0.995 else f"{value * 100:.0f} %"


def print_table(title, columns, rows):
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' + '--:|' * (len(columns) - 1)}", flush=True)
    for row in rows:
        cells = (f"{cell:,}" if isinstance(cell, int) else cell for cell in row)
        print(f"| {' | '.join(cells)} |", flush=True)


def capacity(costs, mean, rules=Rules()):
    """Jobs in a second that the server carries."""
    progress = mean / rules.progress_period
    writes = costs.submit_writes + costs.claim_writes + costs.end_writes + progress
    return 1 / (writes / costs.writes_per_second + costs.claim_reads / costs.reads_per_second)


def loaded(options, size, job, load, rules=Rules(), **more):
    """A fleet in its steady state, its rate, and the time in which it runs as many jobs as a row has."""
    _, duration, mean = job
    rate = load * PLACES * size / mean
    fleet = Fleet(size, PLACES, options.costs, rules, duration=duration, **more)
    if not fleet.route:
        fleet.fill(load)
    return fleet, rate, options.jobs / rate


def measure(fleet, rate, duration, warm_up):
    fleet.arrive(rate, warm_up + duration)
    fleet.run_until(warm_up)
    fleet.reset()
    fleet.run_until(warm_up + duration)


def scale(options):
    """Throughput and wait of fleets whose places are used to 80 %."""
    load = 0.8
    for job, size in itertools.product([AGENTS, exponential(10), exponential(1), exponential(0.1)], SIZES):
        name, _, mean = job
        limit = capacity(options.costs, mean)
        if load * PLACES * size / mean > limit:
            yield name, size, count(load * PLACES * size / mean), f"server: {count(limit)}", "100 %", "grows", "grows"
            continue
        fleet, rate, duration = loaded(options, size, job, load)
        measure(fleet, rate, duration, min(duration / 5, 20 * mean))
        waits = [seconds(percentile(fleet.waits, share)) for share in (0.5, 0.99)]
        yield name, size, count(rate), count(fleet.ended / duration), percent(fleet.server_load()), *waits


def server(options):
    """Daemons that one server serves, at 80 % of the places."""
    for name, _, mean in [AGENTS, exponential(10), exponential(1), exponential(0.1), exponential(0.01)]:
        row = [name]
        for writes in (10_000, 30_000, 100_000):
            costs = Costs(writes_per_second=writes, reads_per_second=writes * options.costs.reads_per_second / options.costs.writes_per_second)
            jobs = capacity(costs, mean)
            row.append(f"{count(jobs)}; {count(jobs * mean / (0.8 * PLACES))}")
        yield row


def deaths(options):
    """kill -9 of daemons, each once in an hour. 70 % of the places are used, by agents' commands."""
    for size, restart, rules in [
        (10, 10, Rules()),
        (100, 10, Rules()),
        (1000, 10, Rules()),
        (10_000, 10, Rules()),
        (1000, math.inf, Rules()),
        (3, 10, Rules(recovers_claims=False)),
        (100, 10, Rules(recovers_claims=False)),
        (1000, 10, Rules(recovers_claims=False)),
        (1000, 10, Rules(retry_if_lost=0)),
    ]:
        fleet, rate, duration = loaded(options, size, AGENTS, 0.7, rules)
        # Daemons that do not return reduce the fleet, by 5 % here.
        duration = min(duration, 180) if restart == math.inf else duration
        fleet.arrive(rate, duration)
        fleet.kill_some(size / 3600, restart, duration)
        fleet.run_until(duration)
        fleet.run_until(duration + 5000)
        kind = "does not return" if restart == math.inf else "returns"
        kind += "" if rules.recovers_claims else ", gives nothing back"
        kind += "" if rules.retry_if_lost else ", no `retry_if_lost`"
        times = [seconds(percentile(fleet.restarts, share)) for share in (0.5, 0.99)]
        stuck = fleet.submitted - fleet.ended
        yield kind, size, count(fleet.submitted), fleet.deaths, fleet.redelivered, *times, fleet.lost, stuck


def outages(options):
    """The server is away. 1,000 daemons, 70 % of the places are used, by agents' commands."""
    for duration, judges_late in [(10, True), (60, True), (300, True), (10, False), (60, False), (300, False)]:
        fleet, rate, _ = loaded(options, 1000, AGENTS, 0.7, Rules(judges_late=judges_late))
        fleet.arrive(rate, duration + 600)
        fleet.at(100, fleet.stop_server, duration)
        drained = math.inf
        while fleet.now < duration + 600:
            fleet.run_until(fleet.now + 1)
            if fleet.now > 101 + duration and drained == math.inf and not fleet.daemons[0].queue.waiting:
                drained = fleet.now - 100 - duration
        fleet.run_until(fleet.now + 5000)
        rule = "yes" if judges_late else "no"
        row = fleet.redelivered, fleet.judged_wrongly, fleet.wasted, seconds(drained), seconds(max(fleet.waits))
        yield f"{duration} s", rule, *row, fleet.submitted - fleet.ended


def partitions(options):
    """A tenth of 1,000 daemons is cut off. 70 % of the places are used, by agents' commands."""
    for duration in (15, 30, 60, 120, 600):
        fleet, rate, _ = loaded(options, 1000, AGENTS, 0.7)
        fleet.arrive(rate, duration + 300)
        fleet.at(100, lambda: fleet.partition(fleet.daemons[::10], duration))
        fleet.run_until(100)
        running = sum(daemon.running for daemon in fleet.daemons[::10])
        fleet.run_until(duration + 300 + 5000)
        late = sum(wait > 1 for wait in fleet.waits)
        yield f"{duration} s", running, fleet.redelivered, fleet.judged_wrongly, fleet.wasted, late, fleet.submitted - fleet.ended


def zipf(size, exponent, entries, draw):
    """The route of jobs, and the share of each daemon: workspaces with Zipf's weights on a hash ring."""
    points = sorted((draw.random(), daemon) for daemon in range(size) for _ in range(entries))
    keys = [point for point, _ in points]
    weights = list(itertools.accumulate(1 / (rank + 1) ** exponent for rank in range(100 * size)))
    owners = [points[bisect.bisect(keys, draw.random()) % len(points)][1] for _ in weights]
    shares = collections.Counter()
    for owner, upper, lower in zip(owners, weights, [0, *weights]):
        shares[owner] += (upper - lower) / weights[-1]
    return lambda draw: owners[bisect.bisect(weights, draw.random() * weights[-1])], shares


def hot(options):
    """Calls and jobs of a workspace go to its daemon. 100 workspaces for each daemon, jobs of 1 s for 10 minutes, 50 % of all places are used."""
    for exponent, size in itertools.product([0, 0.6, 1], [10, 100, 1000]):
        entries = math.ceil(4096 / size)
        route, shares = zipf(size, exponent, entries, random.Random(7))
        hottest = max(shares.values()) * size
        overloaded = sum(share * size * 0.5 >= 1 for share in shares.values())
        row = [f"{exponent:g}", size, entries, f"{hottest:.1f} ×", percent(1 / max(hottest, 1)), overloaded]
        for routed in (True, False):
            fleet, rate, _ = loaded(options, size, exponential(1), 0.5, route=route if routed else None)
            measure(fleet, rate, 600, 60)
            row += [seconds(percentile(fleet.waits, 0.5)), seconds(percentile(fleet.waits, 0.99))]
        yield row


def ring(options):
    """The largest share of the ring of a daemon, compared with the mean."""
    for size in (3, *SIZES):
        entries = math.ceil(4096 / size)
        yield size, entries, *(f"{max(ring_shares(size, each)) * size:.2f} ×" for each in (entries, 100, 1000) if each * size <= 10_000_000)


def prefetch(options):
    """Messages that a daemon takes beyond its free places. 100 daemons."""
    for job, load in itertools.product([AGENTS, exponential(1)], [0.5, 0.8]):
        row = [job[0], percent(load)]
        for extra in (0, 1, 4, 16):
            fleet, rate, duration = loaded(options, 100, job, load, Rules(prefetch=extra))
            measure(fleet, rate, duration, min(duration / 5, 20 * job[2]))
            row.append(f"{seconds(percentile(fleet.waits, 0.5))}, {seconds(percentile(fleet.waits, 0.99))}")
        yield row


TABLES = {
    "scale": (scale, ["job", "daemons", "submitted/s", "ended/s", "server", "wait p50", "wait p99"]),
    "server": (server, ["job", "10,000 writes/s", "30,000 writes/s", "100,000 writes/s"]),
    "deaths": (deaths, ["daemon", "daemons", "jobs", "deaths", "redelivered", "death to next start p50", "p99", "`LOST`", "without an end"]),
    "outages": (outages, ["outage", "judges late", "redelivered", "taken from living daemons", "wasted runs", "backlog gone after", "longest wait", "without an end"]),
    "partitions": (partitions, ["partition", "jobs behind it", "redelivered", "run again", "wasted runs", "jobs that waited over 1 s", "without an end"]),
    "hot": (hot, ["Zipf", "daemons", "ring entries", "hottest daemon", "fleet is full at", "full daemons", "routed p50", "p99", "pulled p50", "p99"]),
    "ring": (ring, ["daemons", "entries each, of 4,096", "largest share", "100 entries each", "1,000 entries each"]),
    "prefetch": (prefetch, ["job", "places used", "0", "1", "4", "16"]),
}


def main():
    parser = argparse.ArgumentParser(description="Prints the tables of docs/operate/fleet-size.md.")
    parser.add_argument("tables", nargs="*", choices=[[], *TABLES], metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--writes", type=float, default=Costs.writes_per_second, help="durable operations of the server in a second")
    parser.add_argument("--reads", type=float, default=Costs.reads_per_second, help="reads of the server in a second")
    parser.add_argument("--queue-ms", type=float, default=Costs.queue_cpu * 1000, help="CPU time of the queue for a job, in a daemon")
    parser.add_argument("--round-trip-ms", type=float, default=Costs.round_trip * 1000)
    options = parser.parse_args()
    options.costs = Costs(
        writes_per_second=options.writes, reads_per_second=options.reads, queue_cpu=options.queue_ms / 1000, round_trip=options.round_trip_ms / 1000
    )
    print(options.costs)
    for name in options.tables or TABLES:
        table, columns = TABLES[name]
        print_table(f"{name}: {table.__doc__}", columns, table(options))


if __name__ == "__main__":
    main()
