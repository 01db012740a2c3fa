//! Archives and copies: owners and permissions, patches.

use super::{failing_lines, run_script, with_each_daemon};
use crate::support::Setup;

with_each_daemon!(trees_survive_archives, rsync_keeps_copies_in_sync, patches_apply);

const TREE: &str = "mkdir -p t/d; echo text > t/d/f; chmod 640 t/d/f; echo x > t/run; chmod 755 t/run; ln -s d/f t/link; ln t/run t/hard; \
    mkfifo t/fifo; mkdir -m 700 t/private; touch -d @1000000000 t/d/f; truncate -s 1M t/sparse";

async fn trees_survive_archives(setup: Setup) {
    let daemon = setup.start().await;

    run_script(&daemon, TREE).await;
    let list = "cd t && find . -printf '%p %y %m %u %g %Ts %l\\n' | sort";
    let round_trip = |archive: &str| {
        format!(
            "({list}) > want; rm -rf out; mkdir out; {archive}; (cd out && {list}) > got; diff want got"
        )
    };

    for archive in [
        "tar c t | tar xp -C out",
        "tar --numeric-owner -czf t.tgz t && tar -xzpf t.tgz -C out",
        "tar -cJf t.txz t && tar -xpf t.txz -C out",
        "tar --zstd -cf t.tzst t && tar -xpf t.tzst -C out",
        "tar --owner=root --group=root -cf t.tar t && tar -xpf t.tar -C out",
        "cp -a t out/",
        "rsync -aH t out/",
    ] {
        run_script(&daemon, &round_trip(archive)).await;
    }

    let owners = run_script(&daemon, "tar tvf t.tar | awk '{print $2}' | sort -u; tar tvf t.tgz --numeric-owner | awk '{print $2}' | sort -u | tr / ' '; id -u; id -g").await;
    let lines: Vec<&str> = owners.lines().collect();
    assert_eq!(lines[0], "root/root");
    assert_eq!(lines[1], format!("{} {}", lines[2], lines[3]));

    let lines = "echo a > a && zip -q z.zip a && unzip -p z.zip | grep a && zip -qr zt.zip t -x t/fifo && unzip -tq zt.zip
        echo a | gzip | zcat && echo a | xz | xzcat && echo a | bzip2 | bzcat && echo a | zstd -q | zstd -dq
        ar rc a.ar a && ar t a.ar
        xz -T2 -k t/sparse && xz -l t/sparse.xz";
    assert_eq!(failing_lines(&daemon, lines).await, [""; 0]);
}

async fn rsync_keeps_copies_in_sync(setup: Setup) {
    let daemon = setup.start().await;
    run_script(&daemon, TREE).await;
    let script = "rsync -a --delete t/ copy/; rm t/run; echo more >> t/d/f; rsync -ai --delete t/ copy/ | sort; diff -r t/d copy/d; test ! -e copy/run; \
        rsync -a --link-dest=../copy t/ snapshot/; test copy/d/f -ef snapshot/d/f; rsync -anc t/ copy/ | wc -l";
    let output = run_script(&daemon, script).await;
    // Times differ too, unless both were written within one second.
    let normalized = output.replace(".d..t...... ./\n", "").replace(">f.st", ">f.s.");
    assert_eq!(normalized, "*deleting   run\n>f.s....... d/f\n0\n", "{output}");
}

async fn patches_apply(setup: Setup) {
    let daemon = setup.start().await;
    let script = "seq 20 > f; cp f f.orig; sed -i 's/^7$/seven/; s/^15$/fifteen/' f; diff -u f.orig f > p || true; patch -R < p; cmp f f.orig; \
        patch --dry-run < p; patch -b < p; grep -c teen f; diff3 f f.orig f | wc -l; git apply --stat p | tail -1";
    let output = run_script(&daemon, script).await;
    assert!(output.contains("checking file f\npatching file f\n1\n"), "{output}");
}
