//! Measurements of other servers that run commands for agents.
//!
//! Taken through their own interfaces on a similar machine: 2 cores, one connection per client,
//! `/bin/true`.
//!
//! They could not be measured on this machine. So the report compares only their ratios to a bare
//! process that was measured in the same hour.

/// Measurements of another server.
#[derive(Debug)]
pub(super) struct PeerServer {
    pub(super) name: &'static str,
    pub(super) isolation: &'static str,
    /// Median with one client, in milliseconds.
    pub(super) p50_ms: f64,
    /// Runs per second with one client and with eight: the best of several measurements.
    pub(super) rates: Option<[f64; 2]>,
}

/// Median of a bare process (`posix_spawn` and wait, without a sandbox) in the same hour, in
/// milliseconds.
const BARE_P50_MS: f64 = 0.60;
/// Bare processes per second in the same hour, with eight clients.
const BARE_RUNS_PER_SECOND: f64 = 2750.0;

pub(super) const PEERS: [PeerServer; 4] = [
    PeerServer {
        name: "Kubernetes agent-sandbox sandboxd",
        isolation: "none",
        p50_ms: 1.1,
        rates: Some([880.0, 1900.0]),
    },
    PeerServer {
        name: "go-judge",
        isolation: "pooled containers",
        p50_ms: 3.15,
        rates: Some([295.0, 550.0]),
    },
    PeerServer { name: "E2B envd", isolation: "none", p50_ms: 3.3, rates: Some([290.0, 560.0]) },
    PeerServer { name: "OpenSandbox execd", isolation: "none", p50_ms: 1006.0, rates: None },
];

impl PeerServer {
    /// Returns the median relative to a bare process.
    pub(super) fn p50_to_bare(&self) -> f64 {
        self.p50_ms / BARE_P50_MS
    }

    /// Returns the throughput with eight clients relative to bare processes.
    pub(super) fn rate_to_bare(&self) -> Option<f64> {
        self.rates.map(|[_, eight]| eight / BARE_RUNS_PER_SECOND)
    }
}

/// Returns the smallest median of all peers, relative to a bare process.
pub(super) fn min_p50_to_bare() -> f64 {
    let ratios = PEERS.iter().map(PeerServer::p50_to_bare);
    ratios.fold(f64::INFINITY, f64::min)
}
