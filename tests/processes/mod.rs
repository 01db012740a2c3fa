//! `ProcessService`: commands that are watched and fed while they run.

mod attach;
mod backpressure;
mod client;
mod client_terminal;
mod disconnect;
mod list;
mod retention;
mod signal;
mod start;
mod stdin;
mod terminal;
