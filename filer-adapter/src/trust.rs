//! Certificates of authorities that are trusted beside the system's own.

use std::path::{Path, PathBuf};

/// The variable that names a file of certificates where no setting does, as AWS's own tools have it.
const VARIABLE: &str = "AWS_CA_BUNDLE";
/// How a certificate begins in a PEM file.
const PEM_START: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// The certificates (PEM) in `file`, else in the one that `AWS_CA_BUNDLE` names; `None` when neither is given.
///
/// The error says what is wrong with the file.
pub(crate) fn certificates(file: Option<&Path>) -> Result<Option<Vec<u8>>, String> {
    let named = || std::env::var_os(VARIABLE).map(PathBuf::from).filter(|path| !path.as_os_str().is_empty());
    let Some(path) = file.map(Path::to_owned).or_else(named) else { return Ok(None) };
    let pem = std::fs::read(&path)
        .map_err(|error| format!("the certificates in {} cannot be read: {error}", path.display()))?;
    if !pem.windows(PEM_START.len()).any(|window| window == PEM_START) {
        return Err(format!("there is no certificate (PEM) in {}", path.display()));
    }
    Ok(Some(pem))
}
