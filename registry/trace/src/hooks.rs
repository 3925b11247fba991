//! What is asked of the hooks' crate. Under loom it has none of it: models record nothing.

#[cfg(loom)]
pub(crate) use self::models::{fork_generation, is_privileged, notice_forks};
#[cfg(not(loom))]
pub(crate) use pinyard_hooks::{fork_generation, is_privileged, notice_forks};

#[cfg(loom)]
mod models {
    pub(crate) fn fork_generation() -> u32 {
        0
    }

    pub(crate) fn is_privileged() -> bool {
        true
    }

    pub(crate) fn notice_forks() {}
}
