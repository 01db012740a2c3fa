//! Calls that are padded so that a part of them is out of sight.

use super::{
    ASK,
    client::{ASKS, MAKES, Somebody, jig},
    with_policy,
};
use crate::support::{promptly, shell};

#[tokio::test]
async fn padding_hides_nothing_and_a_long_call_is_allowed_only_once_all_was_shown() {
    let daemon = with_policy(ASK).await;
    let mut somebody = Somebody::before(&daemon);
    let padding = format!("{}{}", "\n".repeat(61), " ".repeat(3000));
    let padded = format!("echo EVIL{padding}rm -rf nothing{padding}#fine");
    let run = daemon.begin(shell(&padded));
    let seen = somebody.sees(ASKS, 1).await;
    let lines = [
        "  command: echo EVIL",
        "    ⟨60 empty lines⟩",
        "    ⟨3000 blanks⟩rm -rf nothing",
        "    ⟨60 empty lines⟩",
        "    ⟨3000 blanks⟩#fine",
    ];
    assert!(seen.contains(&lines.join("\n")), "{seen}");
    let listed = jig(&daemon, &["approvals", "list"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("command=echo EVIL ⟨60 empty lines⟩"), "{listed}");
    assert!(listed.contains("rm -rf nothing"), "{listed}");
    // All of it fits.
    somebody.types("y\n");
    promptly("it runs", run).await.unwrap().unwrap();

    // Lines that are seen are not folded: they push what is above them out of sight.
    let long = format!("echo EVIL\n{}", "# fine\n".repeat(30));
    let run = daemon.begin(shell(&long));
    somebody.sees("lines but the terminal only 24: answer all", 1).await;
    somebody.sees(ASKS, 2).await;
    for (answer, asked) in [("y\n", 3), ("always\n", 4)] {
        somebody.types(answer);
        somebody.sees(ASKS, asked).await;
    }
    let seen = somebody.sees("not allowed yet", 2).await;
    assert!(!seen.contains(MAKES) && !run.is_finished(), "{seen}");
    somebody.types("all\n");
    let seen = somebody.sees(ASKS, 5).await;
    assert_eq!(seen.matches("command: echo EVIL\n    # fine").count(), 2, "{seen}");
    somebody.types("y\n");
    promptly("it runs", run).await.unwrap().unwrap();
}
