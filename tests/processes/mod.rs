//! `ProcessService`: commands that are watched and fed while they run.

mod attach;
mod backpressure;
mod client;
mod client_hanging_daemon;
mod client_reconnect;
mod client_terminal;
mod client_write_retry;
pub(crate) mod command_line;
mod disconnect;
mod list;
mod retention;
mod signal;
mod start;
mod stdin;
mod terminal;
mod terminal_user;
