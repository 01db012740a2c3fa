//! Starting daemons, calling them, and looking at what they leave behind.

mod acl;
mod call;
mod collector;
mod container;
mod daemon;
mod derived;
mod epoll_shortage;
mod guest;
mod keys;
mod level;
mod process;
mod processes;
mod program;
mod proxy;
mod raw;
mod scale;
mod setup;
mod signals;
mod tree;
mod wait;
mod world;

pub(crate) use acl::access_list;
pub(crate) use call::{Refusal, argv, describe, shell, with};
pub(crate) use collector::{Collector, attribute, hex};
pub(crate) use container::{Container, DOCKER_CAPABILITIES, DOCKER_SECCOMP, Profile, stripped};
pub(crate) use daemon::{Daemon, lazy_channel, tools};
pub(crate) use derived::{derived, set_up, tools as tools_folder};
pub(crate) use epoll_shortage::EpollShortage;
pub(crate) use guest::{Guest, Kernel, guest};
pub(crate) use keys::{KeyFile, with_key};
pub(crate) use level::USER;
pub(crate) use process::{Watch, started, wait_for_end};
pub(crate) use processes::{
    Mark, Process, descendants, host_status, is_alive, marked_count, of_session,
};
pub(crate) use program::{HostProgram, check_answers, check_nothing_is_left, compile};
pub(crate) use proxy::Proxy;
pub(crate) use raw::Raw;
pub(crate) use scale::full_size;
pub(crate) use setup::{DAEMON_INPUT, SECRET, Setup, binary, copy_program, jigd};
pub(crate) use signals::minds_signals;
pub(crate) use tree::{Tree, tree};
pub(crate) use wait::{PROMPT, eventually, patience, promptly, while_waiting};
pub(crate) use world::{Requests, World, in_network_of, name_server, serve};
