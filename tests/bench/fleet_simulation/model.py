"""Discrete-event model of a fleet: daemons that pull jobs from one JetStream server.

A job is submitted, waits at the server for a free place, is claimed, runs, and stores its result. Claims are kept by
progress and heartbeats, as docs/operate/fleet.md describes. The model leaves out bytes: results are small, and networks
have no bandwidth limit. Times are seconds. Random numbers have a seed, so a run is repeatable.
"""

import dataclasses
import heapq
import math
import random
from array import array
from collections import deque

# Percentiles of the duration of agents' commands, as in client/bench/load/random.rs.
AGENT_SECONDS = [(0.0, 0.005), (0.5, 0.08), (0.9, 5.9), (0.99, 230.0), (1.0, 600.0)]


@dataclasses.dataclass(frozen=True)
class Costs:
    """What a job costs beside its command. docs/operate/fleet-size.md has the source of each default."""

    # CPU time of a run and of the queue's part in the daemon, and the cores of a daemon.
    run_cpu: float = 1.2e-3
    queue_cpu: float = 0.4e-3
    cores: int = 2
    # A round trip between daemon and server, and round trips of a claim and of an end.
    round_trip: float = 0.5e-3
    claim_round_trips: int = 3
    end_round_trips: int = 2
    # Durable operations of the server in a second, and reads.
    writes_per_second: float = 30_000
    reads_per_second: float = 50_000
    # Operations of a job. Submission: record, message. Claim: delivery, read and write of the record. End: record, acknowledgement.
    submit_writes: int = 2
    claim_writes: int = 1
    claim_reads: int = 2
    end_writes: int = 2


NO_COSTS = Costs(run_cpu=0, queue_cpu=0, round_trip=0, writes_per_second=math.inf, reads_per_second=math.inf)


@dataclasses.dataclass(frozen=True)
class Rules:
    """Settings of `[fleet]`, and what daemons do after a failure."""

    ack_wait: float = 30
    lost_after: float = 60
    max_deliver: int = 20
    # Share of the jobs with `retry_if_lost`.
    retry_if_lost: float = 1
    # A daemon that starts again gives back what its previous process had claimed.
    recovers_claims: bool = True
    # A daemon that has connected judges others only after `lost_after`: they may not have connected yet.
    judges_late: bool = True
    # Daemons connect again within this time after an outage, and then send a heartbeat.
    reconnect: float = 2
    # Messages that a daemon takes beyond its free places.
    prefetch: int = 0

    @property
    def progress_period(self):
        return self.ack_wait / 3

    @property
    def heartbeat_period(self):
        return self.lost_after / 3


class Job:
    __slots__ = ("attempts", "claimed", "duration", "ended", "interrupted", "is_redelivered", "owner", "queue", "retries", "submitted")

    def __init__(self, submitted, duration, queue, retries):
        self.submitted, self.duration, self.queue, self.retries = submitted, duration, queue, retries
        self.owner = None
        self.attempts = 0
        self.is_redelivered = self.ended = False
        self.claimed = 0.0
        # When its daemon died.
        self.interrupted = None


class Queue:
    __slots__ = ("pulls", "waiting")

    def __init__(self):
        self.waiting = deque()
        # Pull requests, one for each free place: a daemon and its life.
        self.pulls = deque()


class Daemon:
    __slots__ = ("connected", "cpu_free", "jobs", "life", "local", "phase", "queue", "running", "silent")

    def __init__(self, queue, phase):
        self.queue = queue
        # Events of a previous life have no effect.
        self.life = 0
        # Claimed jobs, those of them that wait for a place, and the number of those that run.
        self.jobs = set()
        self.local = deque()
        self.running = 0
        self.cpu_free = 0.0
        # A part of the heartbeat's period. The daemon is dead or cut off from `silent` until `connected`.
        self.phase = phase
        self.silent = None
        self.connected = -math.inf


class Fleet:
    """`route` returns the daemon of a job. Without it, all daemons pull from one queue."""

    def __init__(self, daemons, places, costs=NO_COSTS, rules=Rules(), duration=lambda draw: draw.expovariate(1), route=None, seed=1):
        self.costs, self.rules, self.duration, self.places, self.route = costs, rules, duration, places, route
        self.draw = random.Random(seed)
        shared = Queue()
        self.daemons = [Daemon(Queue() if route else shared, self.draw.random()) for _ in range(daemons)]
        for _ in range(places + rules.prefetch):
            for daemon in self.daemons:
                daemon.queue.pulls.append((daemon, 0))
        self.now, self.events, self.sequence = 0.0, [], 0
        self.server_free = 0.0
        self.server_down = self.server_up = -math.inf
        # Heartbeats are operations too.
        heartbeats = daemons / rules.heartbeat_period if costs.writes_per_second < math.inf else 0
        self.write_time = 1 / max(costs.writes_per_second - heartbeats, 1)
        self.read_time = 1 / costs.reads_per_second
        self.reset()

    def reset(self):
        """Starts the measurement."""
        self.measured_from = self.now
        # From submission to the first start of the command, and from the death of a daemon to the next start.
        self.waits, self.restarts = array("d"), array("d")
        self.submitted = self.begun = self.ended = self.lost = self.wasted = 0
        self.deaths = self.redelivered = self.returned = self.judged_wrongly = 0
        self.server_busy = 0.0

    def at(self, time, act, *arguments):
        self.sequence += 1
        heapq.heappush(self.events, (time, self.sequence, act, arguments))

    def run_until(self, end):
        events = self.events
        while events and events[0][0] <= end:
            self.now, _, act, arguments = heapq.heappop(events)
            act(*arguments)
        self.now = end

    # The server.

    def is_down(self):
        return self.server_down <= self.now < self.server_up

    def serve(self, start, writes, reads=0):
        """When the server has done operations. It does them in order, and none during an outage."""
        if self.server_down <= start < self.server_up:
            start = self.server_up
        work = writes * self.write_time + reads * self.read_time
        if not work:
            return start
        self.server_busy += work
        self.server_free = max(start, self.server_free) + work
        return self.server_free

    def server_load(self):
        return self.server_busy / (self.now - self.measured_from)

    # The life of a job.

    def arrive(self, rate, until):
        """Submits jobs at random times."""
        if self.now < until:
            self.submit()
            self.at(self.now + self.draw.expovariate(rate), self.arrive, rate, until)

    def submit(self):
        daemon = self.daemons[self.route(self.draw)] if self.route else self.daemons[0]
        job = Job(self.now, self.duration(self.draw), daemon.queue, self.draw.random() < self.rules.retry_if_lost)
        self.submitted += 1
        self.at(self.serve(self.now, self.costs.submit_writes), self.offer, job)

    def fill(self, load):
        """Starts as many jobs as run in the steady state, each somewhere within its duration."""
        durations = [self.duration(self.draw) for _ in range(50_000)]
        for duration in self.draw.choices(durations, weights=durations, k=round(load * self.places * len(self.daemons))):
            daemon, _ = self.daemons[0].queue.pulls.popleft()
            job = Job(self.now, duration, daemon.queue, True)
            job.owner, job.attempts = daemon, 1
            job.claimed = self.now - duration * self.draw.random()
            self.submitted += 1
            self.begun += 1
            daemon.jobs.add(job)
            daemon.running += 1
            self.at(job.claimed + duration, self.finish, daemon, daemon.life, job, 1)

    def offer(self, job):
        """Delivers a message to the pull request that has waited longest."""
        if self.is_down():
            self.at(self.server_up, self.offer, job)
            return
        pulls = job.queue.pulls
        while pulls:
            daemon, life = pulls.popleft()
            if daemon.life != life:
                continue
            if self.is_silent(daemon):
                # The server does not know that the daemon is cut off. The ack wait of the message expires.
                self.at(self.now + self.rules.ack_wait, self.redeliver, job)
                self.at(daemon.connected, self.free, daemon, life)
            else:
                self.deliver(daemon, job)
            return
        if job.is_redelivered:
            job.queue.waiting.appendleft(job)
        else:
            job.queue.waiting.append(job)

    def deliver(self, daemon, job):
        """What a daemon does with a message depends on the record of the job."""
        owner = job.owner
        if job.ended or (owner is daemon and job in daemon.jobs):
            self.free_after(daemon, self.serve(self.now, 1, 2))
        elif owner is None or owner is daemon:
            self.claim_or_lose(daemon, job)
        elif self.is_heard(owner) or not self.may_judge(daemon):
            self.returned += 1
            self.at(self.now + self.rules.ack_wait / 2, self.redeliver, job)
            self.free_after(daemon, self.serve(self.now, 1, 2))
        else:
            self.judged_wrongly += job in owner.jobs
            self.claim_or_lose(daemon, job)

    def claim_or_lose(self, daemon, job):
        costs = self.costs
        if job.attempts and (not job.retries or job.attempts >= self.rules.max_deliver):
            self.end(job, is_lost=True)
            self.free_after(daemon, self.serve(self.now, costs.end_writes, costs.claim_reads))
            return
        job.owner = daemon
        job.attempts += 1
        daemon.jobs.add(job)
        job.claimed = self.serve(self.now, costs.claim_writes, costs.claim_reads) + costs.claim_round_trips * costs.round_trip
        if daemon.running < self.places:
            daemon.running += 1
            self.begin(daemon, job, job.claimed)
        else:
            daemon.local.append(job)

    def begin(self, daemon, job, start):
        costs = self.costs
        start = daemon.cpu_free = max(start, daemon.cpu_free) + (costs.run_cpu + costs.queue_cpu) / costs.cores
        self.begun += 1
        if job.attempts == 1:
            self.waits.append(start - job.submitted)
        if job.interrupted is not None:
            self.restarts.append(start - job.interrupted)
            job.interrupted = None
        self.at(start + job.duration, self.finish, daemon, daemon.life, job, job.attempts)

    def finish(self, daemon, life, job, attempt):
        """The command has ended. Its place is taken until the result is stored and acknowledged."""
        if daemon.life != life:
            return
        if self.is_silent(daemon):
            self.at(daemon.connected, self.finish, daemon, life, job, attempt)
            return
        if self.is_down():
            self.at(self.reconnected(daemon), self.finish, daemon, life, job, attempt)
            return
        costs = self.costs
        daemon.jobs.discard(job)
        # The compare-and-set fails if another daemon has ended or claimed the job.
        if job.ended or job.owner is not daemon or job.attempts != attempt:
            self.wasted += 1
        else:
            self.end(job)
        progress = int(job.duration / self.rules.progress_period)
        stored = self.serve(self.now, costs.end_writes + progress) + costs.end_round_trips * costs.round_trip
        self.at(stored, self.vacate, daemon, life)

    def end(self, job, is_lost=False):
        assert not job.ended, "two results of one job"
        job.ended = True
        self.ended += 1
        self.lost += is_lost

    def vacate(self, daemon, life):
        """A place is free, for a message that the daemon has, or for a new one."""
        if daemon.life != life:
            return
        if daemon.local:
            self.begin(daemon, daemon.local.popleft(), self.now)
        else:
            daemon.running -= 1
        self.free(daemon, life)

    def free_after(self, daemon, time):
        self.at(time + self.costs.round_trip, self.free, daemon, daemon.life)

    def free(self, daemon, life):
        """The daemon sends a pull request."""
        if daemon.life != life:
            return
        if self.is_down():
            self.at(self.reconnected(daemon), self.free, daemon, life)
            return
        daemon.queue.pulls.append((daemon, life))
        if daemon.queue.waiting:
            self.offer(daemon.queue.waiting.popleft())

    # Claims and heartbeats.

    def is_silent(self, daemon):
        return daemon.silent is not None and daemon.silent <= self.now < daemon.connected

    def reconnected(self, daemon):
        """When a daemon has connected after the outage."""
        return self.server_up + daemon.phase * self.rules.reconnect

    def is_heard(self, daemon):
        """Whether the server has a heartbeat of the daemon that has not expired."""
        period = self.rules.heartbeat_period
        if self.is_silent(daemon):
            age = (daemon.silent - daemon.phase * period) % period
            return self.now < daemon.silent - age + self.rules.lost_after
        age = (self.server_down - daemon.phase * period) % period if self.server_up > -math.inf else 0
        return self.now >= self.reconnected(daemon) or self.now < self.server_down - age + self.rules.lost_after

    def may_judge(self, daemon):
        return not self.rules.judges_late or self.now >= max(self.server_up, daemon.connected) + self.rules.lost_after

    def ack_wait_end(self, job):
        """When the ack wait of a claim expires, if no more progress arrives."""
        period = self.rules.progress_period
        return max(job.claimed + max(0, math.floor((self.now - job.claimed) / period)) * period + self.rules.ack_wait, self.now)

    def redeliver(self, job):
        if job.ended or (job.owner is not None and job in job.owner.jobs and not self.is_silent(job.owner)):
            # The daemon has kept its claim.
            return
        self.redelivered += 1
        job.is_redelivered = True
        self.offer(job)

    # Failures.

    def kill(self, daemon, restart):
        """kill -9 of a daemon that runs again after `restart`, or never."""
        if self.is_silent(daemon):
            return
        self.deaths += 1
        daemon.silent, daemon.connected = self.now, self.now + restart
        lost = [job for job in daemon.jobs if job.owner is daemon and not job.ended]
        for job in lost:
            job.interrupted = self.now
            self.at(self.ack_wait_end(job), self.redeliver, job)
        daemon.life += 1
        daemon.jobs, daemon.running = set(), 0
        daemon.local.clear()
        if restart < math.inf:
            self.at(daemon.connected, self.start, daemon, lost)

    def start(self, daemon, lost):
        daemon.silent = None
        for job in lost if self.rules.recovers_claims else ():
            if not job.ended and job.owner is daemon:
                # The record is QUEUED or ENDED from now on. The message follows when its ack wait expires.
                self.serve(self.now, 1, 1)
                job.owner = None
                if not job.retries:
                    self.end(job, is_lost=True)
        for _ in range(self.places + self.rules.prefetch):
            self.free(daemon, daemon.life)

    def kill_some(self, rate, restart, until):
        """Kills daemons at random times."""
        if self.now < until:
            self.kill(self.draw.choice(self.daemons), restart)
            self.at(self.now + self.draw.expovariate(rate), self.kill_some, rate, restart, until)

    def partition(self, daemons, duration):
        """Cuts daemons off from the server. Their commands go on."""
        for daemon in daemons:
            daemon.silent, daemon.connected = self.now, self.now + duration
            for job in daemon.jobs:
                self.at(self.ack_wait_end(job), self.redeliver, job)

    def stop_server(self, duration):
        """Ends the server. After its restart, it delivers messages again whose ack wait has expired."""
        self.server_down, self.server_up = self.now, self.now + duration
        for queue in {id(daemon.queue): daemon.queue for daemon in self.daemons}.values():
            for daemon, life in queue.pulls:
                self.at(self.reconnected(daemon), self.free, daemon, life)
            queue.pulls.clear()
        for daemon in self.daemons:
            for job in daemon.jobs:
                if self.ack_wait_end(job) < self.server_up:
                    self.at(self.server_up, self.redeliver_after_outage, job)

    def redeliver_after_outage(self, job):
        if not job.ended:
            self.redelivered += 1
            job.is_redelivered = True
            self.offer(job)


def agent_duration(draw):
    """The duration of an agent's command: between two percentiles, its logarithm is uniform."""
    quantile = draw.random()
    for (low, shortest), (high, longest) in zip(AGENT_SECONDS, AGENT_SECONDS[1:]):
        if quantile <= high:
            return shortest * (longest / shortest) ** ((quantile - low) / (high - low))


def agent_mean():
    parts = zip(AGENT_SECONDS, AGENT_SECONDS[1:])
    return sum((high - low) * (longest - shortest) / math.log(longest / shortest) for (low, shortest), (high, longest) in parts)


def ring_shares(daemons, entries, seed=1):
    """The share of each daemon in a hash ring, in which each has this number of entries."""
    draw = random.Random(seed)
    points = sorted((draw.random(), daemon) for daemon in range(daemons) for _ in range(entries))
    shares = [0.0] * daemons
    previous = points[-1][0] - 1
    for point, daemon in points:
        shares[daemon] += point - previous
        previous = point
    return shares


def percentile(values, share):
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else math.nan


def wait_probability(servers, load):
    """Erlang C: the probability of a wait in M/M/c, for a load in Erlang."""
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    return servers * blocked / (servers - load * (1 - blocked))
