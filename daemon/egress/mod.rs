//! Egress: the one way out of a sandbox whose network is `proxy`. An HTTP proxy in the daemon, which
//! connects commands to the hosts that the operator allows and to nothing else.
//!
//! ```text
//! command ─▶ 127.0.0.1:3128 of the slot's network namespace (sandbox/entrance.rs)
//!              │ CONNECT host:port, or GET http://host:port/…
//!              ▼
//!            host and port allowed? ─no─▶ 403, nothing is looked up
//!              │ yes
//!              ▼
//!            the name is looked up, once
//!              ▼
//!            addresses allowed? ─none─▶ 403, nothing is connected to
//!              │ those that are
//!              ▼
//!            a connection from the daemon's network to one of these addresses
//! ```
//!
//! HTTP is read and written by hyper on both sides, so what one side could hide from the other in
//! the way it writes a request does not reach it. Each connection is one task, each run has so many
//! and the daemon so many, and all of a run's end with it.
//!
//! | file | holds |
//! |---|---|
//! | [`proxy`] | the runs that it serves, and how much each may have |
//! | [`request`] | whom a request is for, and what of it is passed on |
//! | [`dial`] | connecting to what is allowed ([`super::outside`]) |
//! | [`connection`] | one connection from a command |
//! | [`meter`] | counting bytes, and noticing that none move |
//! | [`journal`] | what is recorded |
//! | [`variables`] | how programs find the proxy |

mod connection;
pub(crate) mod connection_log;
mod dial;
mod meter;
pub(crate) mod proxy;
pub(crate) mod proxy_env;
mod request;
mod response;
