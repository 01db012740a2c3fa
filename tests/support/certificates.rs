//! Certificates of a CA that exists for one test.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};
use tempfile::TempDir;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// A CA with a directory for its files.
#[derive(Debug)]
pub(crate) struct CertificateAuthority {
    directory: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, as PEM files.
#[derive(Debug, Clone)]
pub(crate) struct CertificateFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// When a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Validity {
    Now,
    Expired,
    NotYet,
}

impl CertificateAuthority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let directory = TempDir::with_prefix("jig-test-ca-").unwrap();
        let name = directory.path().display().to_string();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { directory, issuer }
    }

    /// The certificate of the CA.
    pub(crate) fn ca(&self) -> String {
        self.path("ca.pem").display().to_string()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Issues a certificate for `names`: host names, addresses, or URIs.
    pub(crate) fn issue(&self, file: &str, names: &[&str], validity: Validity) -> CertificateFiles {
        let files = CertificateFiles {
            cert: self.path(&format!("{file}.pem")),
            key: self.path(&format!("{file}-key.pem")),
        };
        self.renew(&files, names, validity);
        files
    }

    /// Issues a certificate for the loopback interface.
    pub(crate) fn issue_server(&self) -> CertificateFiles {
        self.issue("server", &["localhost", "127.0.0.1"], Validity::Now)
    }

    /// Issues a certificate for the loopback interface, with an RSA key.
    pub(crate) fn issue_rsa_server(&self) -> CertificateFiles {
        let files = CertificateFiles { cert: self.path("rsa.pem"), key: self.path("rsa-key.pem") };
        // The library cannot generate such keys.
        let generated = Command::new("openssl")
            .args(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"])
            .output()
            .unwrap();
        let key = String::from_utf8(generated.stdout).unwrap();
        let key = KeyPair::from_pem(&key).unwrap();
        self.write(&files, &key, &["localhost", "127.0.0.1"], Validity::Now);
        files
    }

    /// Replaces the files of a certificate, one after the other.
    pub(crate) fn renew(&self, files: &CertificateFiles, names: &[&str], validity: Validity) {
        self.write(files, &KeyPair::generate().unwrap(), names, validity);
    }

    fn write(&self, files: &CertificateFiles, key: &KeyPair, names: &[&str], validity: Validity) {
        let (uris, hosts): (Vec<&str>, Vec<&str>) =
            names.iter().partition(|name| name.contains(':') && !name.starts_with("::"));
        let hosts: Vec<String> = hosts.into_iter().map(str::to_owned).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        let uris = uris.into_iter().map(|uri| SanType::URI(uri.try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        (params.not_before, params.not_after) = match validity {
            Validity::Now => (date_time_ymd(2020, 1, 1), date_time_ymd(2100, 1, 1)),
            Validity::Expired => (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1)),
            Validity::NotYet => (date_time_ymd(2099, 1, 1), date_time_ymd(2100, 1, 1)),
        };

        let certificate = params.signed_by(key, &self.issuer).unwrap();
        fs::write(&files.cert, certificate.pem()).unwrap();
        write_key(&files.key, &key.serialize_pem());
    }

    /// A channel to a port of this machine, over TLS, that connects on its first use.
    pub(crate) fn channel(&self, port: u16, client: Option<&CertificateFiles>) -> Channel {
        let ca = Certificate::from_pem(self.issuer.pem());
        let tls = ClientTlsConfig::new().ca_certificate(ca).domain_name("localhost");
        let tls = match client {
            Some(files) => tls.identity(files.identity()),
            None => tls,
        };
        let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{port}")).unwrap();
        endpoint.tls_config(tls).unwrap().connect_lazy()
    }
}

/// Replaces a file that only its owner can read. The content appears at once.
pub(crate) fn write_key(path: &Path, content: &str) {
    let part = path.with_extension("part");
    fs::write(&part, content).unwrap();
    fs::set_permissions(&part, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(part, path).unwrap();
}

impl CertificateFiles {
    fn identity(&self) -> Identity {
        Identity::from_pem(
            fs::read_to_string(&self.cert).unwrap(),
            fs::read_to_string(&self.key).unwrap(),
        )
    }

    /// The files as PEM texts: certificate and key.
    pub(crate) fn pem(&self) -> [String; 2] {
        [&self.cert, &self.key].map(|path| fs::read_to_string(path).unwrap())
    }

    /// Arguments of `jigd` for a listener with this certificate.
    pub(crate) fn listener_arguments(&self) -> [String; 4] {
        [
            "--tls-cert".to_owned(),
            self.cert.display().to_string(),
            "--tls-key".to_owned(),
            self.key.display().to_string(),
        ]
    }
}
