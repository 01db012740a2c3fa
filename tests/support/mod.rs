//! Support for tests: starts daemons, calls them, and inspects processes, files and spans.

mod access_list;
mod arm64_programs;
mod build_cache;
mod call;
mod certificates;
mod collector;
mod connection_proxy;
mod container;
mod curl;
mod daemon;
mod epoll_shortage;
mod guest;
mod keys;
mod level;
mod process_table;
mod program;
mod pseudo_terminal;
mod raw_codec;
mod recycling;
mod scale;
mod setup;
mod shared_guests;
mod shortage;
mod signals;
mod test_network;
mod tls_server;
mod tree;
mod wait;
mod watched_process;

pub(crate) use access_list::build_access_list;
pub(crate) use arm64_programs::Arm64Programs;
pub(crate) use build_cache::{build_if_stale, run_setup_script, tools_directory};
pub(crate) use call::{Refusal, argv, describe_status, shell, with_metadata};
pub(crate) use certificates::{CertificateAuthority, CertificateFiles, Validity, write_key};
pub(crate) use collector::{Collector, attribute_text, hex};
pub(crate) use connection_proxy::ConnectionProxy;
pub(crate) use container::{
    Container, DOCKER_CAPABILITIES, DOCKER_SECCOMP, JIGD_SECCOMP, MASKED_PATHS, READ_ONLY_PATHS,
    SeccompProfile, USER_NAMESPACE_RANGE, stripped_binary,
};
pub(crate) use curl::{CurlResponse, curl, curl_command, parse_curl_response};
pub(crate) use daemon::{Daemon, lazy_channel, tool_client};
pub(crate) use epoll_shortage::EpollShortage;
pub(crate) use guest::{GuestOutput, Kernel, guest};
pub(crate) use keys::{KeyFile, with_key};
pub(crate) use level::DAEMON_UID;
pub(crate) use process_table::{
    Mark, Process, count_marked_processes, descendants, find_descendant, is_alive,
    session_processes, status_field,
};
pub(crate) use program::{
    FOREIGN_CALL_ANSWERS, HostProgram, check_answers, check_no_leftovers, compile_in_workspace,
};
pub(crate) use pseudo_terminal::open_pseudo_terminal;
pub(crate) use raw_codec::RawCodec;
pub(crate) use recycling::HOSTILE_SCRIPTS;
pub(crate) use scale::full_size;
pub(crate) use setup::{
    DAEMON_STDIN, SECRET_VARIABLE, Setup, copy_program, daemon_binary, run_jigd,
};
pub(crate) use shared_guests::ALL_ATTACKS_VARIABLE;
pub(crate) use signals::{command_with_default_signals, kill_and_reap};
pub(crate) use test_network::{
    ReceivedRequests, TestNetwork, run_in_network_of, start_http_server, start_name_server,
};
pub(crate) use tls_server::TlsServer;
pub(crate) use tree::{Tree, empty_directory, snapshot_tree};
pub(crate) use wait::{
    MAX_REACTION_TIME, eventually, eventually_within, probe_while_waiting, promptly, wait_timeout,
};
pub(crate) use watched_process::{WatchedProcess, start_request, wait_for_process_exit};
