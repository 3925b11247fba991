//! Devices that not every machine has.

use pinyard_registry::backend::OpenError;

/// What was opened; where it was not, the test is skipped and says why. In the emulated
/// cluster (`PINYARD_TEST_REQUIRE`) everything is there.
pub fn opened<B>(what: &str, backend: Result<B, OpenError>) -> Option<B> {
    match backend {
        Ok(backend) => Some(backend),
        Err(error) if std::env::var_os("PINYARD_TEST_REQUIRE").is_some() => panic!("{what}: {error}"),
        Err(error) => {
            eprintln!("skipped: {what}: {error}");
            None
        }
    }
}
