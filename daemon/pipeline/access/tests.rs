//! Keys, users and what they may do.

use std::time::{Duration, Instant, SystemTime};

use super::*;
use crate::daemon::{
    config::{
        client_certificate::{CertificateName, ClientCertificate},
        keys::{AccessRole, ApiKey, KeyDigest, KeyLimits, RateLimit},
    },
    error::Reason,
};

const DAEMON_UID: u32 = 1000;

impl<'a> Credentials<'a> {
    fn of_key(key: &'a [u8]) -> Self {
        Self { key: Some(key), certificate: None }
    }
}

fn access() -> AccessControl {
    AccessControl::new(LocalTrust {
        daemon_uid: Some(DAEMON_UID),
        loopback: false,
        commands_are_distinguishable: true,
    })
}

fn with_keys(keys: &[(&str, &[u8], Option<SystemTime>)]) -> AccessControl {
    let keys = keys.iter().map(|(name, secret, expires)| ApiKey {
        name: (*name).to_owned(),
        role: AccessRole::Invoke,
        digest: Some(KeyDigest::from_key(secret)),
        certificates: Default::default(),
        workspaces: None,
        create_workspaces: false,
        tools: None,
        limits: Default::default(),
        expires: *expires,
    });

    let access = access();
    let keys = KeyFile { path: "k".into(), keys: keys.collect() };
    access.set_keys(keys, &Catalog::load().unwrap(), &[]).unwrap();

    access
}

fn name(authenticated: Result<Arc<Principal>, Error>) -> String {
    match authenticated {
        Ok(principal) => principal.name().to_owned(),
        Err(error) => {
            assert_eq!(error.reason, Reason::Unauthenticated);
            assert!(!error.message.contains("secret"), "{error}");
            "-".to_owned()
        }
    }
}

#[test]
fn without_keys_own_user_and_root_are_admitted() {
    let trusting = AccessControl::new(LocalTrust { loopback: true, ..access().trust });
    let indistinct =
        AccessControl::new(LocalTrust { commands_are_distinguishable: false, ..access().trust });
    let untrusting = AccessControl::new(LocalTrust { daemon_uid: None, ..access().trust });
    let [own, root, other] = [DAEMON_UID, 0, 1001];
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
            [(&access(), plain), (&trusting, trusted), (&indistinct, commands), (&untrusting, none)]
        {
            assert_eq!(
                name(access.authenticate(Credentials::default(), origin)),
                expected,
                "{origin:?}"
            );
            // Without a key file, a key is ignored.
            let with_key = name(access.authenticate(Credentials::of_key(b"secret"), origin));
            assert_eq!(with_key, expected, "{origin:?}");
        }
    }
}

#[test]
fn with_keys_a_valid_key_is_required() {
    let past = SystemTime::now() - Duration::from_secs(1);
    let future = SystemTime::now() + Duration::from_secs(600);
    let access = with_keys(&[
        ("a", b"secret-a", None),
        ("b", b"secret-b", Some(future)),
        ("old", b"secret-old", Some(past)),
    ]);

    for origin in [
        PeerOrigin::Socket { uid: 0 },
        PeerOrigin::Loopback { uid: Some(DAEMON_UID) },
        PeerOrigin::Elsewhere,
    ] {
        for (key, expected) in [
            (Some("secret-a"), "key:a"),
            (Some("secret-b"), "key:b"),
            (Some("secret-old"), "-"),
            (Some("secret"), "-"),
            (Some("secret-a "), "-"),
            (Some(""), "-"),
            (None, "-"),
        ] {
            let key = key.map(str::as_bytes);
            let credentials = Credentials { key, certificate: None };
            assert_eq!(name(access.authenticate(credentials, origin)), expected, "{key:?}");
        }
    }

    let empty = with_keys(&[]);
    assert_eq!(
        name(empty.authenticate(Credentials::default(), PeerOrigin::Socket { uid: 0 })),
        "-"
    );
}

#[test]
fn principal_is_found_by_name_only_while_it_may_call() {
    let trusting = |access: AccessControl| AccessControl {
        trust: LocalTrust { loopback: true, ..access.trust },
        ..access
    };

    let past = SystemTime::now() - Duration::from_secs(1);
    let keys = [("a", &b"secret-a"[..], None), ("old", b"secret-old", Some(past))];
    for (access, expected) in [
        (access(), &["uid:0", "uid:1000"][..]),
        (trusting(access()), &["uid:0", "uid:1000", "loopback"]),
        // With a key file, callers without a key may not call, so they are not found.
        (trusting(with_keys(&keys)), &["key:a"]),
    ] {
        let all_names = ["uid:0", "uid:1000", "uid:7", "loopback", "key:a", "key:old", "a"];
        let found = all_names.into_iter().filter(|name| {
            let principal = access.find_principal(name);
            principal.is_some_and(|principal| principal.name() == *name)
        });
        assert_eq!(found.collect::<Vec<_>>(), expected);
        let loopback = PeerOrigin::Loopback { uid: None };
        let is_admitted = access.authenticate(Credentials::default(), loopback).is_ok();
        assert_eq!(is_admitted, expected.contains(&"loopback"));
    }
}

#[test]
fn remaining_key_holder_keeps_its_bucket() {
    let rate = RateLimit { per_second: 1, burst: 2 };
    let now = Instant::now();
    let keys_with = |secret: &[u8], burst: u32| KeyFile {
        path: "k".into(),
        keys: vec![ApiKey {
            name: "a".to_owned(),
            role: AccessRole::Invoke,
            digest: Some(KeyDigest::from_key(secret)),
            certificates: Default::default(),
            workspaces: None,
            create_workspaces: false,
            tools: None,
            limits: KeyLimits { rate: Some(RateLimit { burst, ..rate }), concurrent_calls: None },
            expires: None,
        }],
    };

    let keys = |burst| keys_with(b"secret", burst);
    let (access, catalog) = (access(), Catalog::load().unwrap());
    let authenticate = |secret: &[u8]| {
        access.authenticate(Credentials::of_key(secret), PeerOrigin::Socket { uid: 0 })
    };
    let count_calls = |secret: &[u8]| {
        let caller = authenticate(secret).unwrap();
        (0..10).take_while(|_| caller.check_rate(now).is_ok()).count()
    };

    let calls = || count_calls(b"secret");
    access.set_keys(keys(2), &catalog, &[]).unwrap();
    assert_eq!(calls(), 2);
    let before = authenticate(b"secret").unwrap();
    access.set_keys(keys(2), &catalog, &[]).unwrap();
    assert_eq!(calls(), 0);
    assert!(!before.is_revoked());

    // The holder of a replaced key counts as another one, but inherits the empty bucket.
    let other = keys_with(b"other", 2);
    access.set_keys(other, &catalog, &[]).unwrap();
    assert!(before.is_revoked() && authenticate(b"secret").is_err());
    assert_eq!(count_calls(b"other"), 0);
    access.set_keys(keys(3), &catalog, &[]).unwrap();
    assert!(calls() <= 3);
}

#[test]
fn first_keys_revoke_callers_without_a_key() {
    let trusting = AccessControl::new(LocalTrust { loopback: true, ..access().trust });
    let from = [
        PeerOrigin::Socket { uid: 0 },
        PeerOrigin::Socket { uid: DAEMON_UID },
        PeerOrigin::Loopback { uid: None },
    ];

    let trusted = from.map(|origin| trusting.authenticate(Credentials::default(), origin).unwrap());
    assert!(trusted.iter().all(|principal| !principal.is_revoked()));
    let keys = KeyFile { path: "k".into(), keys: Vec::new() };
    let catalog = Catalog::load().unwrap();
    trusting.set_keys(keys, &catalog, &[]).unwrap();
    assert!(trusted.iter().all(|principal| principal.is_revoked()));
}

#[test]
fn key_that_names_unknown_things_is_rejected() {
    let keys = KeyFile {
        path: "k".into(),
        keys: vec![ApiKey {
            name: "a".to_owned(),
            role: AccessRole::Read,
            digest: Some(KeyDigest::default()),
            certificates: Default::default(),
            workspaces: Some(["w".to_owned(), "x".to_owned()].into()),
            create_workspaces: false,
            tools: Some(["run".to_owned(), "ruin".to_owned()].into()),
            limits: Default::default(),
            expires: None,
        }],
    };

    let access = access();
    let problems = access.set_keys(keys, &Catalog::load().unwrap(), &["w"]).unwrap_err();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert_eq!(
        name(access.authenticate(Credentials::default(), PeerOrigin::Socket { uid: 0 })),
        "uid:0"
    );
}

#[test]
fn daemon_accepts_calls_of_its_own_process_under_any_user() {
    let untrusting = AccessControl::new(LocalTrust {
        daemon_uid: None,
        loopback: false,
        commands_are_distinguishable: true,
    });
    let own = geteuid().as_raw();
    assert_eq!(
        name(untrusting.authenticate(Credentials::default(), PeerOrigin::Itself)),
        format!("uid:{own}")
    );
    assert_eq!(
        name(
            untrusting.authenticate(Credentials::default(), PeerOrigin::Socket { uid: DAEMON_UID })
        ),
        "-"
    );
    let with_keys = with_keys(&[("a", b"secret", None)]);
    assert_eq!(name(with_keys.authenticate(Credentials::default(), PeerOrigin::Itself)), "-");
}

/// A certificate with a URI, that expires at `expires`.
fn certificate(uri: &str, year: i32) -> ClientCertificate {
    let mut params = rcgen::CertificateParams::default();
    params.subject_alt_names = vec![rcgen::SanType::URI(uri.try_into().unwrap())];
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    let signed = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
    ClientCertificate::from_der(signed.der()).unwrap()
}

#[test]
fn certificate_authenticates_the_entry_that_names_it() {
    let names = |certificates: &[CertificateName]| certificates.iter().cloned().collect();
    let uri = |text: &str| CertificateName::parse(&format!("uri:{text}")).unwrap();
    let [both, only, unknown, ambiguous] =
        ["a:both", "a:only", "a:unknown", "a:only"].map(|uri| certificate(uri, 2100));
    let expired = certificate("a:only", 2020);

    let entry = |name: &str, secret: Option<&[u8]>, certificates| ApiKey {
        name: name.to_owned(),
        role: AccessRole::Invoke,
        digest: secret.map(KeyDigest::from_key),
        certificates,
        workspaces: None,
        create_workspaces: false,
        tools: None,
        limits: Default::default(),
        expires: None,
    };
    let keys = |certificates: &[CertificateName]| KeyFile {
        path: "k".into(),
        keys: vec![
            entry("both", Some(b"secret-both"), names(&[uri("a:both")])),
            entry("only", None, names(certificates)),
            entry("key", Some(b"secret-key"), names(&[])),
            entry("twin", None, names(&ambiguous.names()[..1])),
        ],
    };
    let (access, catalog) = (access(), Catalog::load().unwrap());
    access.set_keys(keys(&[uri("a:only")]), &catalog, &[]).unwrap();

    for (key, certificate, expected) in [
        (None, Some(&both), "key:both"),
        (None, Some(&only), "key:only"),
        (None, Some(&unknown), "-"),
        (None, Some(&expired), "-"),
        // Two entries name the same certificate.
        (None, Some(&ambiguous), "-"),
        (Some("secret-both"), Some(&both), "key:both"),
        (Some("secret-key"), Some(&both), "-"),
        (Some("secret-key"), Some(&unknown), "key:key"),
        (Some("secret-key"), Some(&expired), "-"),
        (Some("secret-wrong"), Some(&both), "-"),
    ] {
        let credentials = Credentials { key: key.map(str::as_bytes), certificate };
        let found = name(access.authenticate(credentials, PeerOrigin::Elsewhere));
        assert_eq!(found, expected, "{key:?} {:?}", certificate.map(ClientCertificate::names));
    }

    // A certificate that its entry does not name any more is a revoked key.
    let credentials = || Credentials { key: None, certificate: Some(&only) };
    let holder = access.authenticate(credentials(), PeerOrigin::Elsewhere).unwrap();
    access.set_keys(keys(&[uri("a:only")]), &catalog, &[]).unwrap();
    assert!(!holder.is_revoked());
    access.set_keys(keys(&[uri("a:other")]), &catalog, &[]).unwrap();
    assert!(holder.is_revoked());
    assert_eq!(name(access.authenticate(credentials(), PeerOrigin::Elsewhere)), "-");
}

#[test]
fn without_keys_a_certificate_is_ignored() {
    let certificate = certificate("a:b", 2100);
    let credentials = || Credentials { key: None, certificate: Some(&certificate) };
    let access = access();
    assert_eq!(name(access.authenticate(credentials(), PeerOrigin::Socket { uid: 0 })), "uid:0");
    assert_eq!(name(access.authenticate(credentials(), PeerOrigin::Elsewhere)), "-");
}
