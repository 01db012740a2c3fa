//! TLS of a connection: certificates from files, and errors that say what to do.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    AlertDescription, CertificateError, ClientConfig, Error as TlsError, InvalidMessage,
    PeerIncompatible, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// HTTP/2 as a protocol over TLS (RFC 9113, section 3.2).
const ALPN_HTTP2: &[u8] = b"h2";

/// Files of TLS, for an `https://` address. All are in PEM format.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// CA certificates that verify the daemon. Default: those of the system.
    pub ca: Option<PathBuf>,
    /// Certificate that authenticates the client, followed by its intermediates.
    pub client_cert: Option<PathBuf>,
    /// Private key of `client_cert`.
    pub client_key: Option<PathBuf>,
}

/// An option of TLS that cannot be used. `Display` names the file and says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {option} cannot be used: {problem}")]
pub struct InvalidTlsOption {
    option: &'static str,
    problem: String,
}

impl InvalidTlsOption {
    /// Options of TLS for an address without TLS.
    pub(super) fn without_tls(authority: &str) -> Self {
        let problem = format!("it needs an address with TLS: write https://{authority}");
        option_error("CA or client certificate", problem)
    }
}

/// The settings of TLS connections to one daemon.
#[derive(Clone)]
pub(super) struct TlsSettings {
    connector: TlsConnector,
    server_name: ServerName<'static>,
}

impl TlsOptions {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl TlsSettings {
    /// Reads the files. `host` is the host of the address, without brackets.
    pub(super) fn load(options: &TlsOptions, host: &str) -> Result<Self, InvalidTlsOption> {
        let server_name = ServerName::try_from(host.to_owned()).map_err(|_| {
            option_error("address", format!("{host:?} is no name that a certificate can have"))
        })?;

        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| option_error("TLS", error.to_string()))?;
        let builder = match &options.ca {
            Some(path) => builder.with_root_certificates(read_roots(path)?),
            None => builder.with_platform_verifier().map_err(|error| {
                option_error(
                    "CA",
                    format!(
                        "this system has no CA certificates ({error}): name the CA of the daemon with --ca"
                    ),
                )
            })?,
        };

        let mut config = match (&options.client_cert, &options.client_key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let problem = |error: TlsError| {
                    option_error("client certificate", format!("{}: {error}", cert.display()))
                };
                builder
                    .with_client_auth_cert(read_certificates("client certificate", cert)?, {
                        read_key(key)?
                    })
                    .map_err(problem)?
            }
            (Some(_), None) => {
                return Err(option_error(
                    "client certificate",
                    "it needs its private key: give --client-key".to_owned(),
                ));
            }
            (None, Some(_)) => {
                return Err(option_error(
                    "client key",
                    "it needs its certificate: give --client-cert".to_owned(),
                ));
            }
        };
        config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), server_name })
    }

    /// Makes the handshake on a new connection.
    pub(super) async fn handshake(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.server_name.clone(), stream).await
    }
}

fn option_error(option: &'static str, problem: String) -> InvalidTlsOption {
    InvalidTlsOption { option, problem }
}

fn read_pem(option: &'static str, path: &Path) -> Result<Vec<u8>, InvalidTlsOption> {
    fs::read(path).map_err(|error| option_error(option, format!("{}: {error}", path.display())))
}

fn read_certificates(
    option: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, InvalidTlsOption> {
    let pem = read_pem(option, path)?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem).flatten().collect();
    if certificates.is_empty() {
        let problem = format!("{} contains no certificate in PEM format", path.display());
        return Err(option_error(option, problem));
    }
    Ok(certificates)
}

fn read_roots(path: &Path) -> Result<RootCertStore, InvalidTlsOption> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates("CA", path)? {
        roots
            .add(certificate)
            .map_err(|error| option_error("CA", format!("{}: {error}", path.display())))?;
    }
    Ok(roots)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, InvalidTlsOption> {
    PrivateKeyDer::from_pem_slice(&read_pem("client key", path)?).map_err(|_| {
        let problem = format!(
            "{} contains no private key in PEM format, or an encrypted one",
            path.display()
        );
        option_error("client key", problem)
    })
}

/// The error of TLS in an I/O error, if there is one.
pub(super) fn tls_error(error: &io::Error) -> Option<&TlsError> {
    error.get_ref()?.downcast_ref()
}

/// Says why TLS failed and what to do about it.
#[expect(clippy::wildcard_enum_match_arm, reason = "most errors need no remedy of their own")]
pub(super) fn explain(error: &TlsError) -> String {
    let remedy = match error {
        TlsError::InvalidCertificate(problem) => return explain_certificate(problem),
        TlsError::AlertReceived(alert) => return explain_alert(*alert),
        TlsError::InvalidMessage(InvalidMessage::InvalidContentType) => {
            return "the peer does not speak TLS: write `http://` or leave out `https://`"
                .to_owned();
        }
        TlsError::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13) => {
            "the peer supports neither TLS 1.2 nor 1.3: update it"
        }
        TlsError::NoApplicationProtocol => {
            "the peer does not speak HTTP/2: check that a daemon listens there"
        }
        _ => "TLS failed",
    };
    format!("{remedy} ({error})")
}

#[expect(clippy::wildcard_enum_match_arm, reason = "most problems need no remedy of their own")]
fn explain_certificate(problem: &CertificateError) -> String {
    let text = match problem {
        // A bad signature: two CAs have the same name.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the daemon's certificate comes from an unknown CA: name the CA with --ca or JIG_CA"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the daemon's certificate has expired: renew it, or set the clock of this machine"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the daemon's certificate is not valid yet: set the clock of this machine"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the daemon's certificate is for another name: use a name of the certificate in the address"
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the daemon's certificate is not for servers: use one with the purpose serverAuth"
        }
        CertificateError::Revoked => "the daemon's certificate was revoked: renew it",
        // webpki has no variant of its own for a CA certificate in place of the daemon's.
        CertificateError::Other(_) => {
            "the daemon's certificate cannot be used: use one with basicConstraints=CA:FALSE"
        }
        _ => "the daemon's certificate is invalid",
    };
    format!("{text} ({})", TlsError::from(problem.clone()))
}

/// Explains an alert of the peer, which has rejected this client (RFC 8446, section 6.2).
#[expect(clippy::wildcard_enum_match_arm, reason = "most alerts need no remedy of their own")]
fn explain_alert(alert: AlertDescription) -> String {
    let text = match alert {
        AlertDescription::CertificateExpired => {
            "the client certificate has expired: renew it (--client-cert)"
        }
        AlertDescription::UnknownCA => {
            "the daemon does not know the CA of the client certificate: give a certificate of a CA in its --tls-client-ca"
        }
        AlertDescription::CertificateRequired => {
            "the peer requires a client certificate: give --client-cert and --client-key"
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateUnknown
        | AlertDescription::DecryptError => {
            "the peer rejects the client certificate: give another one with --client-cert"
        }
        AlertDescription::ProtocolVersion => "the peer supports neither TLS 1.2 nor 1.3",
        AlertDescription::NoApplicationProtocol => {
            "the peer does not speak HTTP/2: check that a daemon listens there"
        }
        _ => "the peer has ended the TLS handshake",
    };
    format!("{text} (alert {alert:?})")
}
