//! What a registration allows.

bitflags::bitflags! {
    /// Access flags of a memory region, in the verbs' terms (ibv_reg_mr(3)).
    /// Local read is always allowed, so no flag stands for it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The device may write into the pages for this process (receive).
        const LOCAL_WRITE = 1;
        /// A peer may write through the rkey.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read through the rkey.
        const REMOTE_READ = 1 << 2;
        /// A peer may run atomics through the rkey.
        const REMOTE_ATOMIC = 1 << 3;
    }
}

impl Access {
    /// Local read only: send from here.
    pub const LOCAL_READ: Access = Access::empty();

    /// Whether pages are written through it, so that they must be writable.
    pub fn writes(self) -> bool {
        self.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
    }
}
