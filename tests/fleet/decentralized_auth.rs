//! Decentralized authentication of NATS: an operator signs accounts, and accounts sign users.

use std::time::{Duration, SystemTime};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use nkeys::KeyPair;
use serde_json::{Value, json};

/// An operator with an account for its server, and one for a fleet.
pub(super) struct Operator {
    key: KeyPair,
    system: KeyPair,
    account: KeyPair,
}

impl Operator {
    pub(super) fn new() -> Self {
        let [system, account] = [(); 2].map(|()| KeyPair::new_account());
        Self { key: KeyPair::new_operator(), system, account }
    }

    /// Configuration of a server that trusts this operator.
    pub(super) fn server_config(&self) -> String {
        let operator = encode(&self.key, &self.key, json!({ "type": "operator" }), None);
        let accounts = [&self.system, &self.account].map(|account| {
            let unlimited = json!({
                "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1,
                "leaf": -1, "wildcards": true, "mem_storage": -1, "disk_storage": -1,
                "streams": -1, "consumer": -1,
            });
            // A system account has no streams.
            let limits = if account.public_key() == self.account.public_key() {
                unlimited
            } else {
                json!({ "subs": -1, "data": -1, "payload": -1, "exports": -1, "conn": -1 })
            };
            let claims = json!({ "type": "account", "limits": limits });
            format!("{}: {}\n", account.public_key(), encode(&self.key, account, claims, None))
        });
        format!(
            "operator: {operator}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{\n{}}}\n",
            self.system.public_key(),
            accounts.concat()
        )
    }

    /// A credentials file of a new user.
    pub(super) fn credentials(&self, lifetime: Duration) -> String {
        let user = KeyPair::new_user();
        let claims = json!({ "type": "user", "subs": -1, "data": -1, "payload": -1 });
        let jwt = encode(&self.account, &user, claims, Some(lifetime));
        let seed = user.seed().unwrap();
        format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             ************************* IMPORTANT *************************\n\
             NKEY Seed printed below can be used to sign and prove identity.\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )
    }
}

/// A JWT about `subject`, which `issuer` has signed.
fn encode(
    issuer: &KeyPair,
    subject: &KeyPair,
    mut claims: Value,
    lifetime: Option<Duration>,
) -> String {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    claims["version"] = 2.into();
    let mut payload = json!({
        "jti": subject.public_key(),
        "iat": now.as_secs(),
        "iss": issuer.public_key(),
        "sub": subject.public_key(),
        "nats": claims,
    });
    if let Some(lifetime) = lifetime {
        payload["exp"] = (now + lifetime).as_secs().into();
    }

    let header = json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let parts = [header, payload].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part.to_string()));
    let signed = parts.join(".");
    let signature = issuer.sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}
