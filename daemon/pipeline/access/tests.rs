//! Keys, users and what they may do.

use std::time::{Duration, Instant, SystemTime};

use super::*;
use crate::daemon::config::keys::{AccessRole, ApiKey, KeyLimits, RateLimit};

const OWN: u32 = 1000;

fn access() -> AccessControl {
    AccessControl::new(LocalTrust {
        daemon_uid: Some(OWN),
        loopback: false,
        commands_are_distinguishable: true,
    })
}

fn with_keys(keys: &[(&str, &[u8], Option<SystemTime>)]) -> AccessControl {
    let keys = keys.iter().map(|(name, secret, expires)| ApiKey {
        name: (*name).to_owned(),
        role: AccessRole::Invoke,
        digest: KeyDigest::from_key(secret),
        workspaces: None,
        tools: None,
        limits: Default::default(),
        expires: *expires,
    });
    let access = access();
    let keys = KeyFile { path: "k".into(), keys: keys.collect() };
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
    let trusting = AccessControl::new(LocalTrust { loopback: true, ..access().trust });
    let mixed =
        AccessControl::new(LocalTrust { commands_are_distinguishable: false, ..access().trust });
    let nobody = AccessControl::new(LocalTrust { daemon_uid: None, ..access().trust });
    let [own, root, other] = [OWN, 0, 1001];
    let socket = |uid| PeerOrigin::Socket { uid };
    let loopback = |uid| PeerOrigin::Loopback { uid };
    for (origin, plain, trusted, commands, none) in [
        (socket(own), "uid:1000", "uid:1000", "uid:1000", "-"),
        (socket(root), "uid:0", "uid:0", "uid:0", "uid:0"),
        (socket(other), "-", "-", "-", "-"),
        (loopback(Some(own)), "uid:1000", "loopback", "-", "-"),
        (loopback(Some(root)), "uid:0", "loopback", "-", "uid:0"),
        (loopback(Some(other)), "-", "loopback", "-", "-"),
        (loopback(None), "-", "loopback", "-", "-"),
        (PeerOrigin::Elsewhere, "-", "-", "-", "-"),
    ] {
        for (access, expected) in
            [(&access(), plain), (&trusting, trusted), (&mixed, commands), (&nobody, none)]
        {
            assert_eq!(name(access.authenticate(None, origin)), expected, "{origin:?}");
            // A key that is not asked for is not looked at.
            let shown = name(access.authenticate(Some(b"secret"), origin));
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
    for origin in [
        PeerOrigin::Socket { uid: 0 },
        PeerOrigin::Loopback { uid: Some(OWN) },
        PeerOrigin::Elsewhere,
    ] {
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
            assert_eq!(name(access.authenticate(shown, origin)), expected, "{shown:?}");
        }
    }
    let empty = with_keys(&[]);
    assert_eq!(name(empty.authenticate(None, PeerOrigin::Socket { uid: 0 })), "-");
}

#[test]
fn who_is_named_must_still_be_able_to_call() {
    let trusting = |access: AccessControl| AccessControl {
        trust: LocalTrust { loopback: true, ..access.trust },
        ..access
    };
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
            let principal = access.find_principal(name);
            principal.is_some_and(|principal| principal.name() == *name)
        });
        assert_eq!(found.collect::<Vec<_>>(), named);
        let loopback = PeerOrigin::Loopback { uid: None };
        let is_let_in = access.authenticate(None, loopback).is_ok();
        assert_eq!(is_let_in, named.contains(&"loopback"));
    }
}

#[test]
fn who_is_still_there_goes_on_with_what_is_left_to_him() {
    let rate = RateLimit { per_second: 1, burst: 2 };
    let now = Instant::now();
    let read_with = |secret: &[u8], burst: u32| KeyFile {
        path: "k".into(),
        keys: vec![ApiKey {
            name: "a".to_owned(),
            role: AccessRole::Invoke,
            digest: KeyDigest::from_key(secret),
            workspaces: None,
            tools: None,
            limits: KeyLimits { rate: Some(RateLimit { burst, ..rate }), concurrent_calls: None },
            expires: None,
        }],
    };
    let read = |burst| read_with(b"secret", burst);
    let (access, catalog) = (access(), Catalog::load().unwrap());
    let admit = |secret: &[u8]| access.authenticate(Some(secret), PeerOrigin::Socket { uid: 0 });
    let calls_of = |secret: &[u8]| {
        let caller = admit(secret).unwrap();
        (0..10).take_while(|_| caller.check_rate(now).is_ok()).count()
    };
    let calls = || calls_of(b"secret");
    access.set_keys(read(2), &catalog, &[]).unwrap();
    assert_eq!(calls(), 2);
    let before = admit(b"secret").unwrap();
    access.set_keys(read(2), &catalog, &[]).unwrap();
    assert_eq!(calls(), 0);
    assert!(!before.is_revoked());
    // Who holds the key that was replaced is somebody else, and has used up what was left.
    let other = read_with(b"other", 2);
    access.set_keys(other, &catalog, &[]).unwrap();
    assert!(before.is_revoked() && admit(b"secret").is_err());
    assert_eq!(calls_of(b"other"), 0);
    access.set_keys(read(3), &catalog, &[]).unwrap();
    assert!(calls() <= 3);
}

#[test]
fn with_the_first_keys_who_was_trusted_without_one_is_not_any_more() {
    let trusting = AccessControl::new(LocalTrust { loopback: true, ..access().trust });
    let from = [
        PeerOrigin::Socket { uid: 0 },
        PeerOrigin::Socket { uid: OWN },
        PeerOrigin::Loopback { uid: None },
    ];
    let trusted = from.map(|origin| trusting.authenticate(None, origin).unwrap());
    assert!(trusted.iter().all(|principal| !principal.is_revoked()));
    let keys = KeyFile { path: "k".into(), keys: Vec::new() };
    let catalog = Catalog::load().unwrap();
    trusting.set_keys(keys, &catalog, &[]).unwrap();
    assert!(trusted.iter().all(|principal| principal.is_revoked()));
}

#[test]
fn a_key_for_what_there_is_not_is_refused() {
    let keys = KeyFile {
        path: "k".into(),
        keys: vec![ApiKey {
            name: "a".to_owned(),
            role: AccessRole::Read,
            digest: KeyDigest::default(),
            workspaces: Some(["w".to_owned(), "x".to_owned()].into()),
            tools: Some(["run".to_owned(), "ruin".to_owned()].into()),
            limits: Default::default(),
            expires: None,
        }],
    };
    let access = access();
    let problems = access.set_keys(keys, &Catalog::load().unwrap(), &["w"]);
    let problems = problems.unwrap_err();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert_eq!(name(access.authenticate(None, PeerOrigin::Socket { uid: 0 })), "uid:0");
}

#[test]
fn a_daemon_takes_calls_of_its_own_process_whichever_user_it_has() {
    let nobody = AccessControl::new(LocalTrust {
        daemon_uid: None,
        loopback: false,
        commands_are_distinguishable: true,
    });
    let own = geteuid().as_raw();
    assert_eq!(name(nobody.authenticate(None, PeerOrigin::Itself)), format!("uid:{own}"));
    assert_eq!(name(nobody.authenticate(None, PeerOrigin::Socket { uid: OWN })), "-");
    let with_keys = with_keys(&[("a", b"secret", None)]);
    assert_eq!(name(with_keys.authenticate(None, PeerOrigin::Itself)), "-");
}
