//! Egress proxy: the only way out of a sandbox with `network = proxy`. An HTTP proxy in the daemon
//! that connects commands to the hosts the operator allows.
//!
//! ```text
//! command ─▶ 127.0.0.1:3128 of the slot's network namespace (sandbox/proxy_listener.rs)
//!              │ CONNECT host:port, or GET http://host:port/…
//!              ▼
//!            host and port allowed? ─no─▶ 403, without a lookup
//!              │ yes
//!              ▼
//!            the name is looked up, once
//!              ▼
//!            addresses allowed? ─none─▶ 403, without a connection
//!              │ those that are
//!              ▼
//!            a connection from the daemon's network to one of these addresses
//! ```
//!
//! hyper parses and writes HTTP on both sides, so neither side can hide anything from the other by
//! the way it writes a message. Each connection is one task. Connections are limited per run and in
//! total, and end with their run.
//!
//! | module | contents |
//! |---|---|
//! | [`proxy`] | the runs and their limits |
//! | [`request`] | the target of a request, and what is forwarded |
//! | [`dial`] | connecting to allowed targets ([`super::netpolicy`]) |
//! | [`connection`] | one connection from a command |
//! | [`meter`] | byte counts and idle detection |
//! | [`connection_log`] | records, spans and totals |
//! | [`proxy_env`] | environment variables that point programs to the proxy |

mod connection;
pub(crate) mod connection_log;
mod dial;
mod meter;
pub(crate) mod proxy;
pub(crate) mod proxy_env;
mod request;
mod response;
