//! The driver that the environment asks for, where a program has no say in it.

/// The variable.
const VARIABLE: &str = "PINYARD_DRIVER";

/// A driver, by its name in the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// [`Cuda`](crate::Cuda); also where nothing is said.
    Cuda,
    /// [`Simulated`](crate::Simulated).
    Simulated,
}

/// `PINYARD_DRIVER` is set to what is no driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{VARIABLE}={0:?} is refused: cuda or simulated")]
pub struct NoDriver(String);

impl Chosen {
    /// What `PINYARD_DRIVER` says; a process with more rights than its caller does not look.
    ///
    /// # Errors
    /// The value is not allowed.
    pub fn from_environment() -> Result<Chosen, NoDriver> {
        if pinyard_hooks::is_privileged() {
            return Ok(Chosen::Cuda);
        }
        match std::env::var_os(VARIABLE).map(|value| value.to_string_lossy().into_owned()).as_deref() {
            None | Some("cuda") => Ok(Chosen::Cuda),
            Some("simulated") => Ok(Chosen::Simulated),
            Some(other) => Err(NoDriver(other.to_owned())),
        }
    }
}
