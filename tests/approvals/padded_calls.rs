//! Calls with padding that would push a part of them off the screen.

use super::{
    ASK_POLICY,
    cli::{APPROVE_PROMPT, ApproverTerminal, RULE_PROMPT, run_jig},
    start_with_policy,
};
use crate::support::{promptly, shell};

#[tokio::test]
async fn padding_hides_nothing_and_long_calls_require_full_display() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let mut terminal = ApproverTerminal::open_approvals(&daemon);
    let padding = format!("{}{}", "\n".repeat(61), " ".repeat(3000));
    let padded_command = format!("echo EVIL{padding}rm -rf nothing{padding}#fine");
    let run = daemon.spawn_run(shell(&padded_command));
    let screen = terminal.wait_for_text(APPROVE_PROMPT, 1).await;

    let lines = [
        "  command: echo EVIL",
        "    ⟨60 empty lines⟩",
        "    ⟨3000 blanks⟩rm -rf nothing",
        "    ⟨60 empty lines⟩",
        "    ⟨3000 blanks⟩#fine",
    ];
    assert!(screen.contains(&lines.join("\n")), "{screen}");

    let listed = run_jig(&daemon, &["approvals", "list"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("command=echo EVIL ⟨60 empty lines⟩"), "{listed}");
    assert!(listed.contains("rm -rf nothing"), "{listed}");

    // The whole call fits on the screen.
    terminal.type_text("y\n");
    promptly("the command runs", run).await.unwrap().unwrap();

    // Visible lines are not folded: they push the lines above them off the screen.
    let long_command = format!("echo EVIL\n{}", "# fine\n".repeat(30));
    let run = daemon.spawn_run(shell(&long_command));
    terminal.wait_for_text("lines, and the terminal has 24: type all", 1).await;
    terminal.wait_for_text(APPROVE_PROMPT, 2).await;

    for (answer, prompts) in [("y\n", 3), ("always\n", 4)] {
        terminal.type_text(answer);
        terminal.wait_for_text(APPROVE_PROMPT, prompts).await;
    }

    let screen = terminal.wait_for_text("not allowed yet", 2).await;
    assert!(!screen.contains(RULE_PROMPT) && !run.is_finished(), "{screen}");

    terminal.type_text("all\n");
    let screen = terminal.wait_for_text(APPROVE_PROMPT, 5).await;
    assert_eq!(screen.matches("command: echo EVIL\n    # fine").count(), 2, "{screen}");

    terminal.type_text("y\n");
    promptly("the command runs", run).await.unwrap().unwrap();
}
