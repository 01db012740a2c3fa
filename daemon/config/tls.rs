//! Files of TLS: the certificate and key of a listener, and the CA of its clients.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};

use super::{
    client_certificate::ClientCertificate,
    trusted_path::{GROUP_OTHER_WRITE, open_trusted},
};
use crate::daemon::checksum::sha256;

/// Size of each file. A bundle of all public CAs has 250 KiB.
const MAX_PEM_BYTES: u64 = 1 << 20;
/// Permissions of others, none of which the file of a private key may give.
const OTHER_PERMISSIONS: u32 = 0o007;
/// Protocols that the daemon speaks over TLS, preferred first (RFC 7301).
const ALPN_PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The files of TLS for one or more listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    /// CA certificates that verify client certificates. `None`: clients need none.
    pub(crate) client_ca: Option<PathBuf>,
}

/// The paths of [`TlsFiles`] as they were written, possibly incomplete.
#[derive(Debug, Clone, Default)]
pub(super) struct TlsPaths {
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    pub(super) client_ca: Option<PathBuf>,
}

/// What [`TlsFiles`] contained when they were read.
#[derive(Debug, Clone)]
pub(crate) struct TlsCredentials {
    pub(crate) server_config: Arc<ServerConfig>,
    /// When the certificate of the listener expires. `None` if that cannot be read.
    pub(crate) expires: Option<SystemTime>,
    /// Identifies the content of all files.
    pub(crate) digest: String,
}

impl TlsPaths {
    /// Returns the files, or `None` without a certificate. `flag` names a setting in problems.
    pub(super) fn complete(
        self,
        flag: impl Fn(&str) -> String,
        problems: &mut Vec<String>,
    ) -> Option<TlsFiles> {
        match (self.cert, self.key, self.client_ca) {
            (Some(cert), Some(key), client_ca) => Some(TlsFiles { cert, key, client_ca }),
            (None, None, None) => None,
            (None, None, Some(_)) => {
                problems.push(format!(
                    "{} verifies clients of a TLS listener: give {} and {} too",
                    flag("client-ca"),
                    flag("cert"),
                    flag("key")
                ));
                None
            }
            (cert, ..) => {
                let (given, missing) =
                    if cert.is_some() { ("cert", "key") } else { ("key", "cert") };
                problems.push(format!(
                    "{} needs {}: give the PEM files of a certificate and its key",
                    flag(given),
                    flag(missing)
                ));
                None
            }
        }
    }
}

impl TlsFiles {
    /// The paths of all files.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.cert, &self.key].into_iter().chain(&self.client_ca).map(PathBuf::as_path)
    }

    /// Reads and checks all files.
    ///
    /// # Errors
    ///
    /// Returns all problems. Each names the flag and the file.
    pub(crate) fn read(&self) -> Result<TlsCredentials, Vec<String>> {
        let cert = PemFile { flag: "--tls-cert", path: &self.cert };
        let key = PemFile { flag: "--tls-key", path: &self.key };
        let client_ca = self.client_ca.as_deref();
        let client_ca = client_ca.map(|path| PemFile { flag: "--tls-client-ca", path });

        let cert_text = cert.read(GROUP_OTHER_WRITE);
        let key_text = key.read(GROUP_OTHER_WRITE | OTHER_PERMISSIONS);
        let ca_text = client_ca.as_ref().map(|file| file.read(GROUP_OTHER_WRITE)).transpose();
        let (cert_text, key_text, ca_text) = match (cert_text, key_text, ca_text) {
            (Ok(cert), Ok(key), Ok(ca)) => (cert, key, ca),
            (cert, key, ca) => {
                return Err([cert.err(), key.err(), ca.err()].into_iter().flatten().collect());
            }
        };

        let chain = cert.parse_certificates(&cert_text);
        let private_key = PrivateKeyDer::from_pem_slice(&key_text).map_err(|_| {
            key.problem("contains no private key in PEM, or an encrypted one: give an unencrypted key in PKCS #8, PKCS #1 or SEC 1")
        });
        let roots = match (&client_ca, &ca_text) {
            (Some(file), Some(text)) => file.parse_roots(text).map(Some),
            _ => Ok(None),
        };
        let (chain, private_key, roots) = match (chain, private_key, roots) {
            (Ok(chain), Ok(key), Ok(roots)) => (chain, key, roots),
            (chain, key, roots) => {
                return Err([chain.err(), key.err(), roots.err()].into_iter().flatten().collect());
            }
        };

        let leaf = chain.first().and_then(|leaf| ClientCertificate::from_der(leaf).ok());
        let expires = leaf.map(|leaf| leaf.expires());
        let server_config = build_server_config(chain, private_key, roots)
            .map_err(|error| vec![self.explain_config_error(&error)])?;
        let contents = [cert_text, key_text, ca_text.unwrap_or_default()];
        let digests = contents.map(|content| sha256(&content));
        Ok(TlsCredentials {
            server_config: Arc::new(server_config),
            expires,
            digest: digests.join(" "),
        })
    }

    fn explain_config_error(&self, error: &rustls::Error) -> String {
        let (cert, key) = (self.cert.display(), self.key.display());
        if matches!(error, rustls::Error::InconsistentKeys(_)) {
            return format!(
                "--tls-key {key}: does not belong to the certificate in {cert}: give the key that the certificate was made for"
            );
        }
        format!("--tls-cert {cert} and --tls-key {key} cannot be used: {error}")
    }
}

/// One file of TLS, and the flag that names it.
struct PemFile<'a> {
    flag: &'static str,
    path: &'a Path,
}

impl PemFile<'_> {
    fn problem(&self, problem: &str) -> String {
        format!("{} {}: {problem}", self.flag, self.path.display())
    }

    /// Reads the file. Its mode must give none of the permissions in `forbidden`.
    fn read(&self, forbidden: u32) -> Result<Vec<u8>, String> {
        let file = open_trusted(self.path).map_err(|error| {
            self.problem(&error.explain("give the path of an existing PEM file"))
        })?;
        self.read_open(&file, forbidden)
            .map_err(|error| self.problem(&error.to_string()))?
            .map_err(|problem| self.problem(&problem))
    }

    fn read_open(&self, file: &File, forbidden: u32) -> io::Result<Result<Vec<u8>, String>> {
        let mode = file.metadata()?.mode();
        if mode & forbidden != 0 {
            let (problem, remedy) = match mode & GROUP_OTHER_WRITE {
                0 => ("other users have access to it", "chmod o= it"),
                _ => ("users other than its owner can write to it", "chmod go-w it"),
            };
            return Ok(Err(format!("{problem} (mode {:04o}): {remedy}", mode & 0o7777)));
        }

        let mut content = Vec::new();
        file.take(MAX_PEM_BYTES + 1).read_to_end(&mut content)?;
        if content.len() as u64 > MAX_PEM_BYTES {
            return Ok(Err(format!("is larger than {MAX_PEM_BYTES} bytes: give a PEM file")));
        }
        Ok(Ok(content))
    }

    fn parse_certificates(&self, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
        match certificates {
            Ok(certificates) if !certificates.is_empty() => Ok(certificates),
            Ok(_) => Err(self.problem("contains no certificate: give a PEM file with one")),
            Err(error) => Err(self.problem(&format!("is not a valid PEM file: {error}"))),
        }
    }

    fn parse_roots(&self, text: &[u8]) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        for certificate in self.parse_certificates(text)? {
            roots.add(certificate).map_err(|error| self.problem(&error.to_string()))?;
        }
        Ok(roots)
    }
}

fn build_server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    client_roots: Option<RootCertStore>,
) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let builder = match client_roots {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            // A client may also authenticate with a key, and a probe with nothing.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|error| rustls::Error::General(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };

    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = ALPN_PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(config)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    struct Pair {
        cert: String,
        key: String,
    }

    fn pair(name: &str) -> Pair {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        Pair { cert: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
    }

    /// Writes the files with the mode of the key, and reads them.
    fn read(cert: &str, key: &str, key_mode: u32, ca: Option<&str>) -> Result<String, String> {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str, mode: u32| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let files = TlsFiles {
            cert: write("cert.pem", cert, 0o644),
            key: write("key.pem", key, key_mode),
            client_ca: ca.map(|text| write("ca.pem", text, 0o644)),
        };
        files.read().map(|read| read.digest).map_err(|problems| problems.join("\n"))
    }

    #[test]
    fn pair_of_certificate_and_key_is_read() {
        let Pair { cert, key } = pair("a.example");
        for mode in [0o600, 0o400, 0o640, 0o440] {
            read(&cert, &key, mode, None).unwrap();
        }
        let with_ca = read(&cert, &key, 0o600, Some(&cert)).unwrap();
        assert_ne!(with_ca, read(&cert, &key, 0o600, None).unwrap());
    }

    #[test]
    fn each_bad_file_is_named() {
        let Pair { cert, key } = pair("a.example");
        let other = pair("a.example");
        let half = |text: &str| text[..text.len() / 2].to_owned();
        for (cert, key, mode, ca, expected) in [
            (cert.as_str(), key.as_str(), 0o644, None, &["--tls-key", "chmod o="][..]),
            (&cert, &key, 0o620, None, &["--tls-key", "chmod go-w"]),
            ("", "", 0o600, Some(""), &["--tls-cert", "--tls-key", "--tls-client-ca"]),
            (&half(&cert), &key, 0o600, None, &["--tls-cert", "PEM"]),
            (&cert, &half(&key), 0o600, None, &["--tls-key", "no private key"]),
            (&cert, &other.key, 0o600, None, &["does not belong to the certificate"]),
            (&key, &cert, 0o600, None, &["no certificate", "no private key"]),
        ] {
            let problem = read(cert, key, mode, ca).unwrap_err();
            for part in expected {
                assert!(problem.contains(part), "{part}: {problem}");
            }
        }
    }

    #[test]
    fn incomplete_settings_are_rejected() {
        let path = || Some(PathBuf::from("x"));
        for (cert, key, client_ca, expected) in [
            (path(), None, None, "--tls-cert needs --tls-key"),
            (None, path(), path(), "--tls-key needs --tls-cert"),
            (None, None, path(), "give --tls-cert and --tls-key"),
        ] {
            let mut problems = Vec::new();
            let paths = TlsPaths { cert, key, client_ca };
            let files = paths.complete(|name| format!("--tls-{name}"), &mut problems);
            assert_eq!(files, None);
            assert!(problems.concat().contains(expected), "{problems:?}");
        }
    }
}
