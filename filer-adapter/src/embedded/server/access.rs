//! Who is served: those whose signature is right, and of a presigned request no more than what was signed.
//!
//! S3 takes headers that are not part of a presigned request's signature, but none that begin with `x-amz-`: with such a header
//! (`x-amz-copy-source`) whoever was given a `PUT` of one key could have another object copied there, in the signer's name.

use s3s::{
    S3Result,
    access::{S3Access, S3AccessContext},
    s3_error,
};

/// Headers that only say who sends the request, or what answer is wanted.
const HARMLESS: [&str; 3] = ["x-amz-user-agent", "x-amz-checksum-mode", "x-amz-content-sha256"];

/// The rule.
#[derive(Debug)]
pub(super) struct Signed;

#[async_trait::async_trait]
impl S3Access for Signed {
    async fn check(&self, request: &mut S3AccessContext<'_>) -> S3Result<()> {
        if request.credentials().is_none() {
            return Err(s3_error!(AccessDenied, "the request is not signed"));
        }
        let query = request.uri().query().unwrap_or_default();
        let Some(signed) = query.split('&').find_map(|pair| pair.strip_prefix("X-Amz-SignedHeaders=")) else {
            return Ok(());
        };
        let signed = percent_encoding::percent_decode_str(signed).decode_utf8_lossy();
        let is_signed = |name: &str| signed.split(';').any(|header| header.eq_ignore_ascii_case(name));
        let names = request.headers().keys().map(http::HeaderName::as_str);
        let meaningful = |name: &&str| name.starts_with("x-amz-") && !HARMLESS.contains(name);
        match names.filter(meaningful).find(|name| !is_signed(name)) {
            Some(name) => Err(s3_error!(AccessDenied, "the header {name} of this presigned request is not signed")),
            None => Ok(()),
        }
    }
}
