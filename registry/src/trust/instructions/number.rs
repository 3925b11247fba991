//! What is known of a system call's number.

/// The number of a system call instruction.
pub(super) enum Number {
    Is(u32),
    /// The function's caller passes it.
    Passed,
    /// It comes from further away, or is computed.
    Computed,
}
