//! Authenticates the daemon to the NATS servers. The file with its credentials is read at each
//! connection, because orchestrators replace it while the daemon runs.

use async_nats::{Auth, AuthError};
use nkeys::KeyPair;

use crate::daemon::{config::fleet::NatsCredentials, task};

/// Signs the nonce of a server with the credentials that the file has now.
pub(super) async fn authenticate(
    credentials: NatsCredentials,
    nonce: Vec<u8>,
) -> Result<Auth, AuthError> {
    let read = task::spawn_blocking(move || sign(&credentials, &nonce)).await;
    let signed = read.unwrap_or_else(|panic| Err(panic.to_string()));
    signed.map_err(|problem| {
        tracing::warn!(
            problem,
            remedy = "correct the file: the daemon reads it at each attempt",
            "cannot authenticate to the NATS server of the fleet"
        );
        AuthError::new(problem)
    })
}

/// Checks that the file has credentials. Blocks.
pub(super) fn check_credentials(credentials: &NatsCredentials) -> Result<(), String> {
    sign(credentials, &[]).map(drop)
}

fn sign(credentials: &NatsCredentials, nonce: &[u8]) -> Result<Auth, String> {
    let mut auth = Auth::new();
    let (file, seed) = match credentials {
        NatsCredentials::None => return Ok(auth),
        NatsCredentials::Nkey(file) => (file, file.read()?.text().into_owned()),
        NatsCredentials::File(file) => {
            let secret = file.read()?;
            let text = secret.text();
            let Some((jwt, seed)) = parse_credentials(&text) else {
                return Err(file.problem("is no credentials file, with a JWT and a seed"));
            };
            auth.jwt = Some(jwt.to_owned());
            (file, seed.to_owned())
        }
    };

    let key = KeyPair::from_seed(&seed);
    let key = key.map_err(|error| file.problem(format!("has no seed of an nkey: {error}")))?;
    // A server identifies an nkey by its public key, and a JWT by itself.
    if auth.jwt.is_none() {
        auth.nkey = Some(key.public_key());
    }
    auth.signature = Some(key.sign(nonce).map_err(|error| file.problem(error))?);
    Ok(auth)
}

/// Returns the JWT and the seed: the first two lines that stand between lines of dashes.
fn parse_credentials(text: &str) -> Option<(&str, &str)> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_border = |line: &str| line.starts_with("---");
    let mut contents = lines.windows(3).filter_map(|lines| match lines {
        [before, content, after] => {
            let is_content = !content.is_empty() && !is_border(content);
            (is_border(before) && is_content && is_border(after)).then_some(*content)
        }
        _ => None,
    });
    Some((contents.next()?, contents.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_between_lines_of_dashes() {
        let text = "-----BEGIN NATS USER JWT-----\r\neyJ0.eyJq.c2ln\r\n------END NATS USER JWT------\r\n\r\n\
            ************************* IMPORTANT *************************\r\n\
            NKEY Seed printed below can be used to sign and prove identity.\r\n\r\n\
            -----BEGIN USER NKEY SEED-----\r\nSUAIO3FH\r\n------END USER NKEY SEED------\r\n";
        assert_eq!(parse_credentials(text), Some(("eyJ0.eyJq.c2ln", "SUAIO3FH")));

        let (jwt_only, _) = text.split_once("***").unwrap();
        for text in ["", "SUAIO3FH", "---\n---\n---\n---", jwt_only] {
            assert_eq!(parse_credentials(text), None, "{text:?}");
        }
    }
}
