//! Client certificates, and the names by which entries of the key file select them.

use std::{fmt, time::SystemTime};

use sha2::{Digest as _, Sha256};
use x509_cert::{
    Certificate,
    der::{self, Decode as _},
    ext::pkix::{SubjectAltName, name::GeneralName},
};

/// Bytes of a name: longer ones are certainly wrong.
const MAX_NAME_BYTES: usize = 2048;

/// A name that selects client certificates.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum CertificateName {
    /// A subject alternative name. SPIFFE ids are URIs.
    Uri(String),
    /// A subject alternative name, in lower case.
    Dns(String),
    /// A subject alternative name, with the domain in lower case.
    Email(String),
    /// SHA-256 of the whole certificate.
    Fingerprint([u8; 32]),
}

/// What the daemon needs to know about a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientCertificate {
    /// The fingerprint, then the subject alternative names.
    names: Vec<CertificateName>,
    expires: SystemTime,
}

/// The rule that [`CertificateName::parse`] enforces.
pub(crate) const CERTIFICATE_NAME_RULE: &str = "give uri:URI, dns:NAME or email:ADDRESS as in the certificate, or sha256: and the 64 hexadecimal digits of its fingerprint";

impl CertificateName {
    /// Reads `uri:…`, `dns:…`, `email:…` or `sha256:…`. Colons in a fingerprint are ignored.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (kind, value) = text.split_once(':')?;
        let is_plain = value.bytes().all(|byte| byte.is_ascii_graphic());
        if value.is_empty() || value.len() > MAX_NAME_BYTES || !is_plain {
            return None;
        }
        match kind {
            "uri" => Some(Self::Uri(value.to_owned())),
            "dns" => Some(Self::dns(value)),
            "email" => Self::email(value),
            "sha256" => parse_fingerprint(value).map(Self::Fingerprint),
            _ => None,
        }
    }

    fn dns(name: &str) -> Self {
        Self::Dns(name.trim_end_matches('.').to_ascii_lowercase())
    }

    fn email(address: &str) -> Option<Self> {
        let (local, domain) = address.rsplit_once('@')?;
        Some(Self::Email(format!("{local}@{}", domain.to_ascii_lowercase())))
    }

    fn from_general_name(name: &GeneralName) -> Option<Self> {
        match name {
            GeneralName::UniformResourceIdentifier(uri) => Some(Self::Uri(uri.to_string())),
            GeneralName::DnsName(name) => Some(Self::dns(name.as_str())),
            GeneralName::Rfc822Name(address) => Self::email(address.as_str()),
            GeneralName::OtherName(_)
            | GeneralName::DirectoryName(_)
            | GeneralName::EdiPartyName(_)
            | GeneralName::IpAddress(_)
            | GeneralName::RegisteredId(_) => None,
        }
    }
}

fn parse_fingerprint(text: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b':').collect();
    let mut fingerprint = [0; 32];
    if digits.len() != 2 * fingerprint.len() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in fingerprint.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(fingerprint)
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri(uri) => write!(f, "uri:{uri}"),
            Self::Dns(name) => write!(f, "dns:{name}"),
            Self::Email(address) => write!(f, "email:{address}"),
            Self::Fingerprint(bytes) => {
                f.write_str("sha256:")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

impl ClientCertificate {
    /// Reads a certificate. Does not verify it.
    pub(crate) fn from_der(bytes: &[u8]) -> der::Result<Self> {
        let certificate = Certificate::from_der(bytes)?;
        let content = certificate.tbs_certificate();
        let alternative_names = content.get_extension::<SubjectAltName>()?;
        let alternative_names = alternative_names.map(|(_, names)| names.0).unwrap_or_default();

        let fingerprint = CertificateName::Fingerprint(Sha256::digest(bytes).into());
        let names = alternative_names.iter().filter_map(CertificateName::from_general_name);
        Ok(Self {
            names: std::iter::once(fingerprint).chain(names).collect(),
            expires: content.validity().not_after.to_system_time(),
        })
    }

    /// The names by which entries can select it: the fingerprint, then alternative names.
    pub(crate) fn names(&self) -> &[CertificateName] {
        &self.names
    }

    pub(crate) fn expires(&self) -> SystemTime {
        self.expires
    }

    pub(crate) fn has_expired(&self) -> bool {
        self.expires <= SystemTime::now()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    #[test]
    fn names_are_parsed_and_written() {
        let digits = "0123456789abcdef".repeat(4);
        let pairs: Vec<&str> =
            digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap()).collect();
        for (text, expected) in [
            ("uri:spiffe://example.org/Builder", "uri:spiffe://example.org/Builder"),
            ("dns:Builder.Example.org.", "dns:builder.example.org"),
            ("email:Ada@Example.org", "email:Ada@example.org"),
            (&format!("sha256:{digits}"), &format!("sha256:{digits}")),
            (&format!("sha256:{}", pairs.join(":").to_uppercase()), &format!("sha256:{digits}")),
        ] {
            assert_eq!(CertificateName::parse(text).unwrap().to_string(), expected);
        }
        for text in
            ["", "uri", "uri:", "cn:a", "builder", "email:ada", "sha256:00", "dns:a b", "URI:x"]
        {
            assert_eq!(CertificateName::parse(text), None, "{text}");
        }
        let bad_digit = format!("sha256:{}g", &digits[1..]);
        assert_eq!(CertificateName::parse(&bad_digit), None);
    }

    #[test]
    fn certificate_has_its_fingerprint_and_alternative_names() {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![
            SanType::URI("spiffe://example.org/a".try_into().unwrap()),
            SanType::DnsName("A.example.org".try_into().unwrap()),
            SanType::Rfc822Name("ada@example.org".try_into().unwrap()),
            SanType::IpAddress([127, 0, 0, 1].into()),
        ];
        params.not_after = rcgen::date_time_ymd(2030, 1, 2);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();

        let read = ClientCertificate::from_der(certificate.der()).unwrap();
        let names: Vec<_> = read.names().iter().map(CertificateName::to_string).collect();
        let fingerprint = crate::daemon::checksum::sha256(certificate.der());
        assert_eq!(
            names,
            [
                format!("sha256:{fingerprint}").as_str(),
                "uri:spiffe://example.org/a",
                "dns:a.example.org",
                "email:ada@example.org"
            ]
        );
        let expires = read.expires().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(expires.as_secs(), 1_893_542_400);

        assert!(ClientCertificate::from_der(b"x").is_err());
    }
}
