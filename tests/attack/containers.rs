//! The attacks of this directory on a root daemon in a container, with the default capabilities,
//! seccomp profile and masks of Docker and Podman.
//!
//! Each engine's test runs this test program again with `JIG_TEST_CONTAINER`, which starts root
//! daemons in such a container: a few of the attacks, and all of them with `JIG_FULL=1`.

use std::{env, process::Command};

use crate::support::full_size;

/// Attacks that always run, in both containers.
const SAMPLED_ATTACKS: &[&str] = &[
    "shared_counters::mappings_count_as_memory",
    "filesystem::case_37_command_reads_no_file_of_the_host",
    "kernel::cases_58_and_n22_command_cannot_change_mounts",
    "many_runs::case_80_daemon_leaks_nothing_after_200_concurrent_runs",
];

/// Tests that fail in a container although no attack succeeds: the reason and the tests.
type ExpectedFailures = &'static [(&'static str, &'static [&'static str])];

const EXPECTED_IN_ALL_CONTAINERS: ExpectedFailures = &[
    (
        "Linux 6.14 and newer hide the machine's pid_max from process namespaces; engines bound processes",
        &["shared_counters::runs_share_at_most_half_of_the_process_ids"],
    ),
    (
        "commands cannot change files that root creates after the start",
        &["filesystem::case_50_modified_set_id_program_loses_its_bits"],
    ),
    (
        "the test binds a directory of the host that the container does not have",
        &["host_sockets::daemon_blocks_host_sockets_or_warns_about_them"],
    ),
    (
        "runs share the inotify instances of their user below L3",
        &["kernel::inotify_instances_are_limited_per_run"],
    ),
    (
        "the daemon's /proc shows command lines, and at L1 /proc/key-users, below L3",
        &["filesystem::case_52_command_cannot_read_details_of_machine_or_init"],
    ),
];

/// The daemon gives L2 there.
const EXPECTED_IN_PODMAN: ExpectedFailures = &[(
    "each run has a network namespace of its own at L2",
    &["reused_networks::clean_runs_reuse_network_namespaces"],
)];

/// The daemon gives L1 there.
const EXPECTED_IN_DOCKER: ExpectedFailures = &[
    (
        "the daemon runs no command: L1 has neither a proxy nor the daemon's network",
        &[
            "egress::case_75_connections_bypassing_the_proxy_fail_promptly",
            "egress::case_75_proxy_never_connects_a_command_to_the_daemon",
            "egress::case_75_command_in_host_network_reaches_the_daemons_addresses",
            "egress::case_76_proxy_denies_the_daemon_and_its_neighbours",
            "egress::case_76_host_network_does_not_expose_unix_sockets",
            "egress::case_77_every_network_mode_blocks_other_socket_families",
            "egress::case_78_runs_share_ports_only_in_the_host_network",
            "egress::case_79_proxy_blocks_dns_rebinding",
            "egress::case_79_proxy_connects_only_to_allowed_targets",
            "egress::case_79_proxy_without_rules_connects_to_nothing",
            "host_names::case_n14_proxy_checks_resolves_and_forwards_the_same_name",
            "host_names::case_n14_proxy_rejects_malformed_names_without_lookup",
            "reused_networks::clean_runs_reuse_network_namespaces",
            "exposed_kernel::cases_n1_n2_and_n3_command_cannot_reach_known_kernel_flaws",
        ],
    ),
    (
        "the daemon runs no command: L1 cannot enforce `protected`",
        &[
            "protected_paths::case_49_tools_and_commands_cannot_change_protected_paths",
            "repository::presets_protect_configurations_of_agents_and_editors",
        ],
    ),
    (
        "L1 does not protect a repository by default, and the daemon logs this",
        &["repository::commands_cannot_replace_a_git_file"],
    ),
    (
        "the attack does not start: L1 refuses all sockets except connected pairs",
        &[
            "host_sockets::command_reaches_its_own_sockets",
            "descriptors_in_flight::descriptors_in_flight_do_not_block_other_runs",
            "network::case_75_command_fails_promptly_to_reach_the_daemons_network",
            "network::case_76_passed_socket_reaches_only_the_run_that_passed_it",
            "network::case_76_command_cannot_reach_the_daemon_or_its_neighbours",
            "network::case_76_runs_of_two_workspaces_cannot_reach_each_other",
            "network::case_76_concurrent_runs_cannot_reach_each_other",
            "network::case_77_command_cannot_create_sockets_of_other_families",
            "output::case_23_passed_stdout_does_not_delay_the_response",
            "reused_networks::case_63_run_leaves_nothing_in_a_reused_network",
            "reused_networks::case_76_network_with_a_surviving_socket_is_not_reused",
            "exposed_kernel::case_n3b_debugger_cannot_merge_pages",
            "exposed_kernel::case_n3b_command_reaches_little_kernel_surface",
        ],
    ),
    (
        "the daemon refuses the request: at L1 runs have no file systems of their own",
        &[
            "memory::case_26_memory_limit_kills_a_memory_bomb",
            "memory::case_27_tmp_files_are_limited_and_removed_after_the_run",
            "memory::case_28_memory_without_a_process_is_limited_and_freed",
            "memory::case_29_tmp_inodes_are_limited",
        ],
    ),
    (
        "the test expects what L3 provides: /workspace, /tmp, /dev, one process 1, no other processes, \
         a network per run",
        &[
            "killed_processes::case_14_daemon_replaces_a_killed_launcher_and_ends_its_runs",
            "killed_processes::case_14_killed_init_ends_only_its_own_run",
            "killed_processes::case_14_daemon_without_keeper_runs_nothing",
            "file_tools::case_38_tools_do_not_follow_links_out_of_the_workspace",
            "file_tools::case_48_daemon_keeps_the_workspace_that_it_opened",
            "filesystem::case_54_working_directory_cannot_use_leaked_descriptors",
            "filesystem::case_63_run_leaves_nothing_for_the_next_run",
            "isolation::case_n11_no_run_field_lowers_isolation",
            "isolation::case_n11_no_start_field_lowers_isolation",
            "isolation::case_n11_no_variable_and_no_metadata_lowers_isolation",
            "kernel::case_60_command_cannot_enter_namespaces",
            "kernel::case_68_command_cannot_inject_terminal_input",
            "repository::git_runs_nothing_for_the_operator_in_an_attacked_repository",
            "command_environment::case_56_command_sees_no_secrets_or_sockets_of_the_host",
            "command_environment::case_57_command_sees_only_harmless_devices",
            "command_environment::case_82_request_cannot_lower_isolation_or_read_the_daemons_environment",
            "command_environment::cases_61_66_70_71_73_and_74_process_settings_do_not_weaken_isolation",
        ],
    ),
    (
        "RLIMIT_NPROC counts all processes of the user at L1: the run may have a few more or fewer",
        &[
            "lifetime::case_07_shell_fork_bomb_is_contained_by_its_limit",
            "lifetime::case_07_fork_bomb_ignoring_sigterm_is_contained_by_its_limit",
            "lifetime::case_08_thread_bomb_is_contained_by_its_limit",
        ],
    ),
];

fn run_attacks_in(engine: &str, expected: ExpectedFailures) {
    let mut command = Command::new(env::current_exe().unwrap());
    if full_size(1, 0) == 1 {
        command.args(["attack::", "--skip", "attack::containers"]);
    } else {
        let names = SAMPLED_ATTACKS.iter().map(|name| format!("attack::{name}"));
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

    let expected_failures = expected.iter().chain(EXPECTED_IN_ALL_CONTAINERS);
    let expected_failures: Vec<_> =
        expected_failures.flat_map(|(_, names)| *names).copied().collect();
    failed.retain(|name| !expected_failures.contains(name));
    assert!(failed.is_empty(), "{failed:#?}\n{text}");
    assert!(passed >= SAMPLED_ATTACKS.len(), "{passed} passed\n{text}");
}

#[test]
fn attacks_fail_in_a_docker_container() {
    run_attacks_in("docker", EXPECTED_IN_DOCKER);
}

#[test]
fn attacks_fail_in_a_podman_container() {
    run_attacks_in("podman", EXPECTED_IN_PODMAN);
}
