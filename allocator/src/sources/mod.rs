//! Sources of device memory, of host memory that a device knows, and of the
//! caller's own. Plain host memory is `host.rs`.

mod custom;
mod device;
mod managed;
mod numa;
mod pinned;
mod virtual_memory;

pub use self::{
    custom::CustomSource, device::DeviceSource, managed::ManagedSource, pinned::PinnedSource,
    virtual_memory::VirtualSource,
};
