//! `ProcessService`: commands that are watched and fed while they run.

mod attach;
mod backpressure;
mod client;
mod client_lost;
mod client_refused;
mod client_stuck;
mod client_terminal;
pub(crate) mod command_line;
mod disconnect;
mod list;
mod person;
mod retention;
mod signal;
mod start;
mod stdin;
mod terminal;
