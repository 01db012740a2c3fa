//! Keys, users and what they may do.

use std::time::{Duration, Instant, SystemTime};

use super::*;
use crate::daemon::config::keys::{Allowance, Key, Rate, Role};

const OWN: u32 = 1000;

fn access() -> Access {
    Access::new(Trust { own: Some(OWN), loopback: false, commands_are_apart: true })
}

fn with_keys(keys: &[(&str, &[u8], Option<SystemTime>)]) -> Access {
    let keys = keys.iter().map(|(name, secret, expires)| Key {
        name: (*name).to_owned(),
        role: Role::Invoke,
        digest: Digest::of(secret),
        workspaces: None,
        tools: None,
        allowance: Default::default(),
        expires: *expires,
    });
    let access = access();
    let keys = Keys { file: "k".into(), keys: keys.collect() };
    access.set_keys(keys, &Catalog::load().unwrap(), &[]).unwrap();
    access
}

fn name(admitted: Result<Arc<Principal>, Error>) -> String {
    match admitted {
        Ok(principal) => principal.name().to_owned(),
        Err(error) => {
            assert_eq!(error.reason, Reason::Unauthenticated);
            assert!(!error.message.contains("secret"), "{error}");
            "-".to_owned()
        }
    }
}

#[test]
fn without_keys_the_own_user_and_root_are_let_in() {
    let trusting = Access::new(Trust { loopback: true, ..access().trust });
    let mixed = Access::new(Trust { commands_are_apart: false, ..access().trust });
    let nobody = Access::new(Trust { own: None, ..access().trust });
    let [own, root, other] = [OWN, 0, 1001];
    let socket = |uid| Origin::Socket { uid };
    let loopback = |uid| Origin::Loopback { uid };
    for (origin, plain, trusted, commands, none) in [
        (socket(own), "uid:1000", "uid:1000", "uid:1000", "-"),
        (socket(root), "uid:0", "uid:0", "uid:0", "uid:0"),
        (socket(other), "-", "-", "-", "-"),
        (loopback(Some(own)), "uid:1000", "loopback", "-", "-"),
        (loopback(Some(root)), "uid:0", "loopback", "-", "uid:0"),
        (loopback(Some(other)), "-", "loopback", "-", "-"),
        (loopback(None), "-", "loopback", "-", "-"),
        (Origin::Elsewhere, "-", "-", "-", "-"),
    ] {
        for (access, expected) in
            [(&access(), plain), (&trusting, trusted), (&mixed, commands), (&nobody, none)]
        {
            assert_eq!(name(access.admit(None, origin)), expected, "{origin:?}");
            // A key that is not asked for is not looked at.
            let shown = name(access.admit(Some(b"secret"), origin));
            assert_eq!(shown, expected, "{origin:?}");
        }
    }
}

#[test]
fn with_keys_a_right_one_is_needed() {
    let past = SystemTime::now() - Duration::from_secs(1);
    let future = SystemTime::now() + Duration::from_secs(600);
    let access = with_keys(&[
        ("a", b"secret-a", None),
        ("b", b"secret-b", Some(future)),
        ("old", b"secret-old", Some(past)),
    ]);
    for origin in
        [Origin::Socket { uid: 0 }, Origin::Loopback { uid: Some(OWN) }, Origin::Elsewhere]
    {
        for (shown, expected) in [
            (Some("secret-a"), "key:a"),
            (Some("secret-b"), "key:b"),
            (Some("secret-old"), "-"),
            (Some("secret"), "-"),
            (Some("secret-a "), "-"),
            (Some(""), "-"),
            (None, "-"),
        ] {
            let shown = shown.map(str::as_bytes);
            assert_eq!(name(access.admit(shown, origin)), expected, "{shown:?}");
        }
    }
    let empty = with_keys(&[]);
    assert_eq!(name(empty.admit(None, Origin::Socket { uid: 0 })), "-");
}

#[test]
fn who_is_named_must_still_be_able_to_call() {
    let trusting =
        |access: Access| Access { trust: Trust { loopback: true, ..access.trust }, ..access };
    let past = SystemTime::now() - Duration::from_secs(1);
    let keys = [("a", &b"secret-a"[..], None), ("old", b"secret-old", Some(past))];
    for (access, named) in [
        (access(), &["uid:0", "uid:1000"][..]),
        (trusting(access()), &["uid:0", "uid:1000", "loopback"]),
        // Who shows no key cannot call where there are keys, and so not be named either.
        (trusting(with_keys(&keys)), &["key:a"]),
    ] {
        let everybody = ["uid:0", "uid:1000", "uid:7", "loopback", "key:a", "key:old", "a"];
        let found = everybody.into_iter().filter(|name| {
            let principal = access.named(name);
            principal.is_some_and(|principal| principal.name() == *name)
        });
        assert_eq!(found.collect::<Vec<_>>(), named);
        let loopback = Origin::Loopback { uid: None };
        let is_let_in = access.admit(None, loopback).is_ok();
        assert_eq!(is_let_in, named.contains(&"loopback"));
    }
}

#[test]
fn who_is_still_there_goes_on_with_what_is_left_to_him() {
    let rate = Rate { per_second: 1, burst: 2 };
    let now = Instant::now();
    let read_with = |secret: &[u8], burst: u32| Keys {
        file: "k".into(),
        keys: vec![Key {
            name: "a".to_owned(),
            role: Role::Invoke,
            digest: Digest::of(secret),
            workspaces: None,
            tools: None,
            allowance: Allowance { rate: Some(Rate { burst, ..rate }), concurrent_calls: None },
            expires: None,
        }],
    };
    let read = |burst| read_with(b"secret", burst);
    let (access, catalog) = (access(), Catalog::load().unwrap());
    let admit = |secret: &[u8]| access.admit(Some(secret), Origin::Socket { uid: 0 });
    let calls_of = |secret: &[u8]| {
        let caller = admit(secret).unwrap();
        (0..10).take_while(|_| caller.count_call(now).is_ok()).count()
    };
    let calls = || calls_of(b"secret");
    access.set_keys(read(2), &catalog, &[]).unwrap();
    assert_eq!(calls(), 2);
    let before = admit(b"secret").unwrap();
    access.set_keys(read(2), &catalog, &[]).unwrap();
    assert_eq!(calls(), 0);
    assert!(!before.is_dismissed());
    // Who holds the key that was replaced is somebody else, and has used up what was left.
    let other = read_with(b"other", 2);
    access.set_keys(other, &catalog, &[]).unwrap();
    assert!(before.is_dismissed() && admit(b"secret").is_err());
    assert_eq!(calls_of(b"other"), 0);
    access.set_keys(read(3), &catalog, &[]).unwrap();
    assert!(calls() <= 3);
}

#[test]
fn with_the_first_keys_who_was_trusted_without_one_is_not_any_more() {
    let trusting = Access::new(Trust { loopback: true, ..access().trust });
    let from =
        [Origin::Socket { uid: 0 }, Origin::Socket { uid: OWN }, Origin::Loopback { uid: None }];
    let trusted = from.map(|origin| trusting.admit(None, origin).unwrap());
    assert!(trusted.iter().all(|principal| !principal.is_dismissed()));
    let keys = Keys { file: "k".into(), keys: Vec::new() };
    let catalog = Catalog::load().unwrap();
    trusting.set_keys(keys, &catalog, &[]).unwrap();
    assert!(trusted.iter().all(|principal| principal.is_dismissed()));
}

#[test]
fn a_key_for_what_there_is_not_is_refused() {
    let keys = Keys {
        file: "k".into(),
        keys: vec![Key {
            name: "a".to_owned(),
            role: Role::Read,
            digest: Digest::default(),
            workspaces: Some(["w".to_owned(), "x".to_owned()].into()),
            tools: Some(["run".to_owned(), "ruin".to_owned()].into()),
            allowance: Default::default(),
            expires: None,
        }],
    };
    let access = access();
    let problems = access.set_keys(keys, &Catalog::load().unwrap(), &["w"]);
    let problems = problems.unwrap_err();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert_eq!(name(access.admit(None, Origin::Socket { uid: 0 })), "uid:0");
}

#[test]
fn a_daemon_takes_calls_of_its_own_process_whichever_user_it_has() {
    let nobody = Access::new(Trust { own: None, loopback: false, commands_are_apart: true });
    let own = geteuid().as_raw();
    assert_eq!(name(nobody.admit(None, Origin::Itself)), format!("uid:{own}"));
    assert_eq!(name(nobody.admit(None, Origin::Socket { uid: OWN })), "-");
    let with_keys = with_keys(&[("a", b"secret", None)]);
    assert_eq!(name(with_keys.admit(None, Origin::Itself)), "-");
}
