//! The attacks of this folder on a daemon of root's in a container, with the capabilities, the
//! seccomp profile and the masks that Docker and Podman give by default.
//!
//! Each engine's test runs this binary again, where `JIG_TEST_CONTAINER` starts daemons of root's in
//! such a container: a handful of the attacks, and all of them with `JIG_FULL=1`.

use std::{env, process::Command};

use crate::support::full_size;

/// Attacks that are tried in both containers at each run of the tests.
const HANDFUL: &[&str] = &[
    "counters::mappings_count_as_memory",
    "filesystem::case_37_files_of_the_host_are_not_there_by_any_name",
    "kernel::cases_58_and_n22_nothing_can_be_mounted_unmounted_or_made_writable",
    "many::case_80_two_hundred_runs_at_once_leave_nothing",
];

/// Tests that fail there although no attack succeeds, by the reason.
type Expected = &'static [(&'static str, &'static [&'static str])];

const OF_ALL_CONTAINERS: Expected = &[
    (
        "Linux 6.14 and newer hide the machine's pid_max from process namespaces; engines bound processes",
        &["counters::processes_of_all_runs_are_half_of_the_machines"],
    ),
    (
        "what root makes after the start is not the commands' to change",
        &["filesystem::case_50_a_set_id_program_of_the_host_that_is_changed_is_one_no_more"],
    ),
    (
        "the test leads a bind to a directory of the host that the container has not",
        &["host_sockets::sockets_of_the_host_in_what_commands_are_shown_are_refused_or_named"],
    ),
    (
        "runs share the inotify instances of their user below L3",
        &["kernel::one_run_cannot_take_all_inotify_instances"],
    ),
    (
        "the daemon's /proc shows command lines, and at L1 /proc/key-users, below L3",
        &["filesystem::case_52_what_tells_about_the_machine_or_the_init_cannot_be_read"],
    ),
];

/// At L2.
const OF_PODMAN: Expected = &[(
    "each run has a network namespace of its own at L2",
    &["recycled::runs_that_leave_nothing_have_one_network_after_the_other"],
)];

/// At L1.
const OF_DOCKER: Expected = &[
    (
        "the daemon runs no command: L1 has neither a proxy nor the daemon's network",
        &[
            "egress::case_75_beside_the_proxy_there_is_no_way_out_and_that_is_told_at_once",
            "egress::case_75_the_proxy_never_connects_a_command_to_the_daemon",
            "egress::case_75_with_the_daemons_network_a_command_reaches_what_the_daemon_does",
            "egress::case_76_the_proxy_is_no_way_to_the_daemon_or_its_neighbours",
            "egress::case_76_with_the_daemons_network_its_sockets_without_a_port_are_still_apart",
            "egress::case_77_no_network_gives_sockets_of_other_families",
            "egress::case_78_two_runs_may_listen_on_the_same_port_unless_they_share_the_daemons_network",
            "egress::case_79_a_name_that_leads_elsewhere_the_second_time_leads_nowhere",
            "egress::case_79_the_proxy_connects_to_what_is_allowed_and_to_nothing_else",
            "egress::case_79_without_rules_nothing_is_reached",
            "host_names::case_n14_what_is_checked_is_looked_up_connected_to_and_passed_on",
            "host_names::case_n14_what_is_no_plain_name_is_refused_and_not_looked_up",
            "recycled::runs_that_leave_nothing_have_one_network_after_the_other",
            "surface::cases_n1_n2_and_n3_copy_fail_dirty_frag_and_fragnesia_are_not_reachable",
        ],
    ),
    (
        "the daemon runs no command: L1 cannot enforce `protected`",
        &[
            "protected::case_49_protected_paths_are_changed_by_nobody",
            "repository::presets_cover_what_agents_and_editors_read",
        ],
    ),
    (
        "the default protection of a repository is not given at L1, which the log says",
        &["repository::a_git_file_is_not_exchanged"],
    ),
    (
        "the attack does not begin: L1 refuses all sockets but connected pairs",
        &[
            "host_sockets::a_run_reaches_the_sockets_that_it_makes_itself",
            "in_flight::descriptors_in_flight_do_not_hinder_other_runs",
            "network::case_75_what_the_daemon_reaches_a_command_does_not_and_is_told_at_once",
            "network::case_76_a_socket_that_another_run_passes_on_reaches_that_run_and_nothing_else",
            "network::case_76_neither_the_daemon_nor_its_neighbours_can_be_reached",
            "network::case_76_runs_of_two_workspaces_meet_nowhere",
            "network::case_76_two_runs_at_a_time_do_not_reach_each_other",
            "network::case_77_sockets_of_other_families_cannot_be_made",
            "output::case_23_a_pipe_handed_to_another_run_does_not_hold_the_answer",
            "recycled::case_63_nothing_of_one_run_is_in_the_next_ones_network",
            "recycled::case_76_a_socket_that_outlives_its_run_is_in_no_later_runs_network",
            "surface::case_n3b_a_debugger_may_not_have_pages_merged",
            "surface::case_n3b_little_of_the_kernel_is_offered_to_commands",
        ],
    ),
    (
        "the request is refused: L1 has no file systems of a run's own",
        &[
            "memory::case_26_a_memory_bomb_is_killed_and_the_daemon_lives",
            "memory::case_27_files_in_memory_stop_at_their_size_and_are_gone_behind_the_run",
            "memory::case_28_memory_without_a_process_is_held_and_gone_behind_the_run",
            "memory::case_29_names_in_tmp_stop_at_their_number",
        ],
    ),
    (
        "the test looks for what L3 shows: /workspace, /tmp, /dev, one process 1, no other processes, \
         a network of the run's own",
        &[
            "death::case_14_a_launcher_that_is_killed_takes_its_runs_along_and_is_replaced",
            "death::case_14_an_init_that_is_killed_takes_only_its_own_run_along",
            "death::case_14_without_a_keeper_nothing_is_run",
            "files::case_38_links_out_of_the_workspace_are_not_followed",
            "files::case_48_the_workspace_is_what_it_was_when_it_was_opened",
            "filesystem::case_54_a_leaked_descriptor_is_no_way_out_for_the_working_directory",
            "filesystem::case_63_nothing_of_one_run_is_there_in_the_next",
            "isolation::case_n11_no_field_of_a_run_lowers_its_isolation",
            "isolation::case_n11_no_field_of_a_started_process_lowers_its_isolation",
            "isolation::case_n11_no_variable_and_no_metadata_lowers_isolation",
            "kernel::case_60_no_namespace_can_be_entered",
            "kernel::case_68_nothing_can_be_typed_into_a_terminal",
            "repository::a_repository_makes_git_run_nothing_for_the_operator",
            "surroundings::case_56_no_secrets_and_no_sockets_of_the_host_are_there",
            "surroundings::case_57_only_harmless_devices_are_there",
            "surroundings::case_82_a_request_can_neither_lower_the_isolation_nor_have_the_daemons_environment",
            "surroundings::cases_61_66_70_71_73_and_74_what_a_process_asks_for_itself_opens_nothing",
        ],
    ),
    (
        "RLIMIT_NPROC counts all processes of the user at L1: those of the run may be a few more or less",
        &[
            "lifetime::case_07_a_fork_bomb_of_the_shell_reaches_its_limit_and_nothing_else",
            "lifetime::case_07_a_fork_bomb_that_ignores_sigterm_reaches_its_limit_and_nothing_else",
            "lifetime::case_08_a_thread_bomb_reaches_its_limit_and_nothing_else",
        ],
    ),
];

fn attack(engine: &str, expected: Expected) {
    let mut command = Command::new(env::current_exe().unwrap());
    if full_size(1, 0) == 1 {
        command.args(["attack::", "--skip", "attack::contained"]);
    } else {
        let names = HANDFUL.iter().map(|name| format!("attack::{name}"));
        command.arg("--exact").args(names);
    }
    let output = command
        .args(["--test-threads", "2"])
        .env("JIG_TEST_CONTAINER", engine)
        .env_remove("JIG_FULL")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let (mut passed, mut failed) = (0, Vec::new());
    for line in text.lines() {
        let result = line.strip_prefix("test attack::").and_then(|line| line.split_once(" ... "));
        match result {
            Some((_, "ok")) => passed += 1,
            Some((name, "FAILED")) => failed.push(name),
            _ => {}
        }
    }
    let known = expected.iter().chain(OF_ALL_CONTAINERS);
    let known: Vec<_> = known.flat_map(|(_, names)| *names).copied().collect();
    failed.retain(|name| !known.contains(name));
    assert!(failed.is_empty(), "{failed:#?}\n{text}");
    assert!(passed >= HANDFUL.len(), "{passed} passed\n{text}");
}

#[test]
fn no_attack_on_a_daemon_in_dockers_container_succeeds() {
    attack("docker", OF_DOCKER);
}

#[test]
fn no_attack_on_a_daemon_in_podmans_container_succeeds() {
    attack("podman", OF_PODMAN);
}
