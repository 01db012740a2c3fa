//! Hosts, ports and addresses that `fetch_url` must not reach, in every spelling.

use jig::api::v1::{ListToolsRequest, catalog_service_client::CatalogServiceClient};

use super::{
    ALLOWED_HOST, HttpSite, METADATA_ADDRESS, OTHER_HOST, PRIVATE_ADDRESS, fetch, fetch_failing,
    respond_hello, start_default_daemon, start_fetching_daemon, test_network, try_fetch,
    url_request,
};
use crate::support::{Daemon, Setup, TestNetwork, start_name_server};

async fn lists_fetch_url(daemon: &Daemon) -> bool {
    let mut catalog = CatalogServiceClient::new(daemon.channel());
    let listed = catalog.list_tools(ListToolsRequest::default()).await;
    let names = listed.unwrap().into_inner().names;
    assert!(names.contains(&"run".to_owned()), "{names:?}");
    names.contains(&"fetch_url".to_owned())
}

#[tokio::test]
async fn fetch_is_disabled_until_hosts_are_configured() {
    let daemon = Setup::new().start().await;
    let refusal = fetch_failing(&daemon, url_request("http://127.0.0.1/"), "TOOL_DISABLED").await;
    assert!(refusal.message.contains("fetch_url"), "{refusal:?}");
    assert!(!lists_fetch_url(&daemon).await);

    // Addresses and ports alone do not enable the tool.
    let table = "[fetch]\nports = [80]\nallow_addresses = [\"127.0.0.1\"]";
    let daemon = Setup::new().workspace_table(table).start().await;
    fetch_failing(&daemon, url_request("http://127.0.0.1/"), "TOOL_DISABLED").await;

    // Reloading the configuration does not either.
    daemon.reload_config(Daemon::RELOADED).await;
    fetch_failing(&daemon, url_request("http://127.0.0.1/"), "TOOL_DISABLED").await;

    let network = test_network();
    let daemon = start_default_daemon(&network).await;
    assert!(lists_fetch_url(&daemon).await);

    daemon.reload_config(Daemon::RELOADED).await;
    assert!(lists_fetch_url(&daemon).await);
}

#[tokio::test]
async fn fetch_reaches_only_allowed_hosts_and_ports() {
    let network = TestNetwork::with_hosts(&[
        ALLOWED_HOST,
        OTHER_HOST,
        ("below.wide.test", ALLOWED_HOST.1),
        ("wide.test", ALLOWED_HOST.1),
    ]);
    let daemon = start_fetching_daemon(
        &network,
        &[ALLOWED_HOST.0, "*.wide.test", "other.jig.test:8080"],
        &["203.0.113.0/24"],
    )
    .await;

    let sites = [
        HttpSite::start(&daemon, ALLOWED_HOST.1, 80, respond_hello),
        HttpSite::start(&daemon, OTHER_HOST.1, 8080, respond_hello),
    ];

    for allowed in [
        "http://site.jig.test/",
        "HTTP://Site.JIG.test.:80/",
        "http://below.wide.test/",
        "http://other.jig.test:8080/",
    ] {
        assert_eq!(fetch(&daemon, url_request(allowed)).await.content, "hello");
    }

    let other_site = HttpSite::start(&daemon, OTHER_HOST.1, 80, respond_hello);
    let names = start_name_server(&daemon, &[&[OTHER_HOST.1]]);
    for (denied, expected_message) in [
        ("http://other.jig.test/", "not on port 80"),
        ("http://wide.test/", "fetch.hosts = [\"wide.test\"]"),
        ("http://site.jig.test.evil.test/", "not among the hosts"),
        ("http://evil.test/", "not among the hosts"),
        ("http://203.0.113.10/", "not among the hosts"),
        ("http://3405803786/", "not among the hosts"),
        ("http://site.jig.test:8080/", "fetch.hosts = [\"site.jig.test:8080\"]"),
        ("http://site.jig.test:22/", "not on port 22"),
        ("https://other.jig.test:444/", "not on port 444"),
    ] {
        let refusal = fetch_failing(&daemon, url_request(denied), "EGRESS_DENIED").await;
        assert!(refusal.message.contains(expected_message), "{denied}: {refusal:?}");
    }

    // The daemon does not resolve the names of denied hosts.
    assert_eq!((names.question_count(), other_site.connection_count()), (0, 0));
    assert_eq!(sites.map(|site| site.connection_count()), [3, 1]);
}

/// Addresses that the daemon denies unless `allow_addresses` lists them.
const DENIED_ADDRESSES: [&str; 15] = [
    "127.0.0.1",
    "0.0.0.0",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "[fe80::1]",
    PRIVATE_ADDRESS,
    METADATA_ADDRESS,
    "[::ffff:169.254.169.254]",
    "[fd00:ec2::254]",
    "192.168.0.1",
    "172.16.0.1",
    "100.64.0.1",
];

/// The same addresses in every spelling that a URL can have.
const ADDRESS_SPELLINGS: [&str; 29] = [
    "127.0.0.1",
    "2130706433",
    "0x7f.1",
    "0x7f000001",
    "0177.1",
    "127.1",
    "127.0.0.1.",
    "①②⑦.0.0.1",
    "0",
    "0.0.0.0",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b::127.0.0.1]",
    "[2002:7f00:1::]",
    "[fe80::1]",
    PRIVATE_ADDRESS,
    "0xa.0x1.0x2.0x3",
    METADATA_ADDRESS,
    "2852039166",
    "0xa9fea9fe",
    "[::ffff:169.254.169.254]",
    "[fd00:ec2::254]",
    "192.168.0.1",
    "172.16.0.1",
    "100.64.0.1",
];

#[tokio::test]
async fn fetch_denies_addresses_in_every_spelling() {
    let network = test_network();

    // The daemon connects to none of them, whether the hosts are allowed or not.
    for allowed in [&DENIED_ADDRESSES[..], &[ALLOWED_HOST.0]] {
        let daemon = start_fetching_daemon(&network, allowed, &[]).await;
        let sites = ["127.0.0.1", "::1", PRIVATE_ADDRESS, METADATA_ADDRESS]
            .map(|address| HttpSite::start(&daemon, address, 80, respond_hello));
        for literal in ADDRESS_SPELLINGS {
            let address = format!("http://{literal}/latest/meta-data/");
            let refusal = fetch_failing(&daemon, url_request(&address), "EGRESS_DENIED").await;
            let expected_message = if allowed.len() == 1 {
                "not among the hosts"
            } else {
                "fetch.allow_addresses = ["
            };
            assert!(refusal.message.contains(expected_message), "{literal}: {refusal:?}");
        }

        assert_eq!(sites.map(|site| site.connection_count()), [0; 4]);
    }
}

#[tokio::test]
async fn fetch_reaches_allowed_addresses() {
    let network = test_network();
    let daemon = start_fetching_daemon(
        &network,
        &["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "localhost"],
        &["127.0.0.1/32", "::1"],
    )
    .await;

    let _sites =
        ["127.0.0.1", "::1"].map(|address| HttpSite::start(&daemon, address, 80, respond_hello));

    for (requested_url, final_url) in [
        ("http://127.0.0.1/", "http://127.0.0.1/"),
        ("http://2130706433/", "http://127.0.0.1/"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("http://[::1]/", "http://[::1]/"),
        ("http://localhost/", "http://localhost/"),
    ] {
        let fetched = fetch(&daemon, url_request(requested_url)).await;
        assert_eq!((fetched.content.as_str(), fetched.final_url.as_str()), ("hello", final_url));
    }

    // An IPv6 address that embeds an allowed IPv4 address is not allowed by it.
    fetch_failing(&daemon, url_request("http://[::ffff:127.0.0.1]/"), "EGRESS_DENIED").await;
}

#[tokio::test]
async fn fetch_checks_addresses_at_every_lookup() {
    let network = TestNetwork::with_hosts(&[
        ("", ALLOWED_HOST.1),
        ("", PRIVATE_ADDRESS),
        ("metadata.jig.test", METADATA_ADDRESS),
    ]);
    let daemon = start_fetching_daemon(&network, &["*.jig.test"], &[ALLOWED_HOST.1]).await;
    let public = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, |path, stream| match path {
        "/again" => super::write_response(stream, "302 Found", "Location: /\r\n", b""),
        _ => respond_hello(path, stream),
    });
    let private = [PRIVATE_ADDRESS, METADATA_ADDRESS]
        .map(|address| HttpSite::start(&daemon, address, 80, respond_hello));
    let names = start_name_server(
        &daemon,
        &[
            &[ALLOWED_HOST.1],
            &[PRIVATE_ADDRESS],
            &[PRIVATE_ADDRESS, ALLOWED_HOST.1],
            // The first answer is for a page that redirects, the second for its target.
            &[ALLOWED_HOST.1],
            &[PRIVATE_ADDRESS],
            &["::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd00:ec2::254"],
        ],
    );

    let rebind = || url_request("http://rebind.jig.test/");

    // The daemon asks once and connects to the address in the answer.
    assert_eq!(fetch(&daemon, rebind()).await.content, "hello");
    assert_eq!((names.question_count(), public.connection_count()), (1, 1));

    let refusal = fetch_failing(&daemon, rebind(), "EGRESS_DENIED").await;
    let expected_message = "leads to 10.1.2.3, a private address";
    assert!(refusal.message.contains(expected_message), "{refusal:?}");

    // Of several addresses, the daemon connects to an allowed one.
    assert_eq!(fetch(&daemon, rebind()).await.content, "hello");

    // Each request of a redirect chain is checked anew.
    fetch_failing(&daemon, url_request("http://rebind.jig.test/again"), "EGRESS_DENIED").await;
    assert_eq!((names.question_count(), public.connection_count()), (5, 3));

    // IPv6 addresses that embed private IPv4 addresses, and a private IPv6 address.
    fetch_failing(&daemon, rebind(), "EGRESS_DENIED").await;
    assert_eq!((names.question_count(), public.connection_count()), (6, 3));

    let refusal =
        fetch_failing(&daemon, url_request("http://metadata.jig.test/"), "EGRESS_DENIED").await;
    assert!(refusal.message.contains("link-local"), "{refusal:?}");
    assert_eq!(private.map(|site| site.connection_count()), [0, 0]);
}

#[tokio::test]
async fn fetch_never_reaches_the_daemon() {
    let network = TestNetwork::with_hosts(&[]);
    let setup = network.setup().workspace_table(
        "[fetch]\nhosts = [\"127.0.0.1\"]\nports = [80, 50999]\nallow_addresses = [\"127.0.0.0/8\"]",
    );
    let daemon = setup.arguments(&["--listen", "127.0.0.1:50999"]).start().await;
    let _site = HttpSite::start(&daemon, "127.0.0.1", 80, respond_hello);
    assert_eq!(fetch(&daemon, url_request("http://127.0.0.1/")).await.content, "hello");

    let refusal =
        fetch_failing(&daemon, url_request("http://127.0.0.1:50999/"), "EGRESS_DENIED").await;
    assert!(refusal.message.contains("is jigd itself"), "{refusal:?}");
}

#[tokio::test]
async fn fetch_ignores_proxy_variables_and_sends_few_headers() {
    let network = test_network();
    let mut setup = network.setup().workspace_table(&format!(
        "[fetch]\nhosts = [{:?}]\nallow_addresses = [{:?}]",
        ALLOWED_HOST.0, ALLOWED_HOST.1
    ));
    let proxy = format!("http://{}", OTHER_HOST.1);
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"] {
        setup = setup.environment(name, &proxy);
    }
    let daemon = setup.start().await;
    let site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, respond_hello);
    let proxy_site = HttpSite::start(&daemon, OTHER_HOST.1, 80, respond_hello);
    assert_eq!(fetch(&daemon, url_request("http://site.jig.test/x")).await.content, "hello");
    assert_eq!(proxy_site.connection_count(), 0);

    // The request carries no more than it needs.
    let [head] = site.heads().try_into().unwrap();
    let lower = head.to_lowercase();
    assert!(lower.starts_with("get /x http/1.1\r\n"), "{head}");
    assert!(lower.contains("user-agent: jigd/"), "{head}");

    for header in ["cookie", "authorization", "referer"] {
        assert!(!lower.contains(header), "{head}");
    }
}

#[tokio::test]
async fn fetch_rejects_invalid_urls_without_connecting() {
    let network = test_network();
    let daemon = start_default_daemon(&network).await;
    let site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, respond_hello);
    for invalid in [
        "",
        "site.jig.test",
        "ftp://site.jig.test/",
        "file:///etc/passwd",
        "gopher://site.jig.test/",
        "javascript:alert(1)",
        "http:site.jig.test",
        "http://",
        "http://user@site.jig.test/",
        "http://user:hunter2@site.jig.test/",
        "http://site.jig.test@other.jig.test/",
        "http://site.jig.test:0/",
        "http://site.jig.test:x/",
        "http://[::1",
        "http://a b/",
        "http://site.jig.test\\@other.jig.test/",
        "http://site.jig.test/\r\nHost: other.jig.test",
    ] {
        let refusal = fetch_failing(&daemon, url_request(invalid), "INVALID_PARAMS").await;
        assert_eq!(refusal.invalid_fields(), ["url"], "{invalid}");
        assert!(!refusal.message.contains("hunter2"), "{refusal:?}");
    }

    assert_eq!(site.connection_count(), 0);
}

#[tokio::test]
async fn policy_rules_match_normalized_urls() {
    let network = test_network();
    let table = format!(
        "[fetch]\nhosts = [{:?}]\nallow_addresses = [{:?}]\n[[policy.rules]]\nname = 'secrets'\ntool = 'fetch_url'\npattern = '\"url\":\"http://site\\.jig\\.test/secret'\naction = 'deny'",
        ALLOWED_HOST.0, ALLOWED_HOST.1
    );
    let daemon = network.setup().workspace_table(&table).start().await;
    let site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, respond_hello);
    fetch(&daemon, url_request("http://site.jig.test/open")).await;

    for address in [
        "http://site.jig.test/secret",
        "HTTP://Site.Jig.Test:80/secret/x",
        "http://site.jig.test./secret",
        "http://Site.Jig.Test.:80/open/../secret",
        "http://site.jig.test/open/../secret",
        "http://site.jig.test/open/%2e%2E/secret",
        "http://site.jig.test/./secret?x#y",
        "http:\\\\site.jig.test\\secret",
        "http://%73ite.jig.test/secret",
        " http://site.jig.test/secret",
        "http://site.jig.test/se\ncret",
    ] {
        let reason = try_fetch(&daemon, url_request(address)).await.unwrap_err().reason;
        assert!(["POLICY_DENIED", "INVALID_PARAMS"].contains(&&*reason), "{address}: {reason}");
    }

    assert_eq!(site.heads().len(), 1);
}

#[tokio::test]
async fn case_n14_fetch_checks_and_resolves_the_same_host_name() {
    let network = test_network();
    let daemon = start_fetching_daemon(&network, &["*.jig.test"], &[ALLOWED_HOST.1]).await;
    let site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, respond_hello);
    let names = start_name_server(&daemon, &[&[ALLOWED_HOST.1]]);
    let long_name = format!("{}jig.test", "a.".repeat(123));

    for host in [
        "evil.test\0.jig.test",
        "evil.test%00.jig.test",
        "evil.test%0d%0a.jig.test",
        "evil.test%20.jig.test",
        "evil.test%2f.jig.test",
        "evil.test%2e.jig.test",
        "evil.test..jig.test",
        "good.jig.test..",
        ".jig.test",
        "user@good.jig.test",
        "good.jig.test@evil.test",
        "good.jig.test%40evil.test",
        "good.jig.test\\.evil.test",
        "[::1%25lo]",
        "[fe80::1%25lo]",
        "[::ffff:203.0.113.10]",
        "good.jig.test.evil.test",
        "evil.test",
        &long_name,
    ] {
        let refusal = try_fetch(&daemon, url_request(&format!("http://{host}/"))).await;
        let reason = refusal.unwrap_err().reason;
        assert!(["INVALID_PARAMS", "EGRESS_DENIED"].contains(&&*reason), "{host:?}: {reason}");
    }

    assert_eq!(names.questions(), [""; 0]);

    // A URL has one host in one spelling: in the result, the name server's question and the header.
    for (host, normalized) in [
        ("Good.JIG.test", "good.jig.test"),
        ("good.jig.test.", "good.jig.test"),
        ("good%2ejig.test", "good.jig.test"),
        ("%67ood.jig.test", "good.jig.test"),
        ("\u{ff47}ood.jig.test", "good.jig.test"),
        ("good\u{3002}jig\u{3002}test", "good.jig.test"),
        ("good\u{ad}.jig.test", "good.jig.test"),
        ("b\u{fc}cher.jig.test", "xn--bcher-kva.jig.test"),
        ("g\u{43e}\u{43e}d.jig.test", "xn--gd-fmca.jig.test"),
    ] {
        let (earlier_questions, earlier_requests) = (names.question_count(), site.heads().len());
        let fetched = fetch(&daemon, url_request(&format!("http://{host}/"))).await;

        assert_eq!(names.questions().split_off(earlier_questions), [normalized], "{host}");
        let [head] = site.heads().split_off(earlier_requests).try_into().unwrap();
        let header = format!("\r\nhost: {normalized}\r\n");
        assert_eq!(fetched.final_url, format!("http://{normalized}/"), "{host}");
        assert!(head.to_lowercase().contains(&header), "{host}: {head}");
    }
}
