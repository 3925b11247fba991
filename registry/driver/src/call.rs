//! The functions of a driver, by name.

macro_rules! calls {
    ($($name:ident)*) => {
        /// A function of [`Driver`](crate::Driver).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)] // the functions of `Driver`
        pub enum Call { $($name),* }

        impl Call {
            /// All of them, by number.
            pub const ALL: [Call; CALLS] = [$(Call::$name),*];
        }

        pub(crate) const CALLS: usize = [$(stringify!($name)),*].len();
    };
}

calls! {
    ContextId MemInfo MemAlloc MemFree MemAllocManaged PhysicalGranularity PhysicalCreate PhysicalRelease AddressReserve AddressFree Map Unmap HostAlloc HostFree HostRegister HostUnregister HostDevicePtr StreamCreate StreamDestroy StreamId StreamQuery StreamSynchronize StreamWaitEvent StreamWriteValue StreamWaitValue StreamCapture CaptureBegin CaptureEnd EventCreate EventDestroy EventRecord EventQuery EventSynchronize CopyToDevice CopyToHost CopyOnDevice Fill ModuleLoad ModuleUnload ModuleFunction Launch HostFunction Synchronize DmaBuf IpcHandle IpcOpen IpcClose
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}
