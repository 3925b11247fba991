//! Finding a provider, and a domain on it.
#![allow(unsafe_code)]

use super::super::{BackendError, OpenError};
use super::abi::{
    self, Calls, Domain, ENODATA, FI_HMEM, FI_MSG, FI_RMA, Fabric, Info, MR_ALLOCATED, MR_HMEM, MR_LOCAL,
    MR_PROV_KEY, MR_VIRT_ADDR,
};
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::{NonNull, null, null_mut};

/// An open domain, and what it said about registrations.
pub(super) struct Opened {
    pub(super) fabric: NonNull<Fabric>,
    pub(super) domain: NonNull<Domain>,
    /// A copy of the entry that it was opened with, for `fi_freeinfo`.
    pub(super) info: NonNull<Info>,
    pub(super) provider: String,
    pub(super) device: String,
    pub(super) key_bytes: usize,
    pub(super) regions: usize,
}

/// The first domain of the provider, or of any.
pub(super) fn open(calls: &Calls, provider: Option<&str>, device_memory: bool) -> Result<Opened, OpenError> {
    let infos = match Infos::get(calls, provider, true, device_memory) {
        Ok(infos) => infos,
        Err(error) if error.errno == ENODATA => return Err(none_there(calls, provider, device_memory)),
        Err(error) => return Err(error.into()),
    };
    let mut refused = None;
    for info in infos.iter() {
        match open_one(calls, info) {
            Ok(opened) => return Ok(opened),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.map_or_else(|| none_there(calls, provider, device_memory), OpenError::from))
}

fn open_one(calls: &Calls, info: NonNull<Info>) -> Result<Opened, BackendError> {
    // SAFETY: an entry of a list that is not freed meanwhile; fi_getinfo fills its
    // attributes in.
    let (fabric_attr, domain_attr) = unsafe { (info.as_ref().fabric_attr, info.as_ref().domain_attr) };
    // SAFETY: as above.
    let (provider, device) = unsafe { (text((*fabric_attr).prov_name), text((*domain_attr).name)) };
    let mut fabric: *mut Fabric = null_mut();
    // SAFETY: attributes of fi_getinfo.
    let answer = unsafe { (calls.fabric)(fabric_attr, &raw mut fabric, null_mut()) };
    let fabric = object(calls, answer, fabric, || format!("fi_fabric({provider})"))?;
    let mut domain: *mut Domain = null_mut();
    // SAFETY: an open fabric, and the entry that it was opened with.
    let answer = unsafe {
        ((*fabric.as_ref().ops).domain)(fabric.as_ptr(), info.as_ptr(), &raw mut domain, null_mut())
    };
    let domain =
        object(calls, answer, domain, || format!("fi_domain({provider}, {device})")).inspect_err(|_| {
            // SAFETY: opened above, and nothing was made on it.
            unsafe { abi::close(fabric.as_ptr().cast()) };
        })?;
    // SAFETY: as above; gives a copy to free, or null.
    let copy = NonNull::new(unsafe { (calls.dupinfo)(info.as_ptr()) }).ok_or_else(|| {
        // SAFETY: opened above, and nothing was made on them.
        unsafe {
            abi::close(domain.as_ptr().cast());
            abi::close(fabric.as_ptr().cast());
        }
        BackendError::new("fi_dupinfo", libc::ENOMEM)
    })?;
    // SAFETY: as above.
    let (key_bytes, regions) = unsafe { ((*domain_attr).mr_key_size, (*domain_attr).mr_cnt) };
    Ok(Opened { fabric, domain, info: copy, provider, device, key_bytes, regions })
}

/// What a call has made.
fn object<T>(
    calls: &Calls,
    answer: c_int,
    made: *mut T,
    call: impl FnOnce() -> String,
) -> Result<NonNull<T>, BackendError> {
    match NonNull::new(made) {
        Some(made) if answer == 0 => Ok(made),
        _ => Err(calls.failed(call(), answer)),
    }
}

/// What fi_getinfo answered.
struct Infos {
    list: *mut Info,
    free: unsafe extern "C" fn(*mut Info),
}

impl Infos {
    /// Of domains whose registrations need no endpoint, or of all.
    fn get(
        calls: &Calls,
        provider: Option<&str>,
        fitting: bool,
        device_memory: bool,
    ) -> Result<Infos, BackendError> {
        let call = || format!("fi_getinfo({})", provider.unwrap_or("any provider"));
        // SAFETY: gives an empty one, or null.
        let hints = unsafe { (calls.dupinfo)(null()) };
        if hints.is_null() {
            return Err(BackendError::new("fi_allocinfo", libc::ENOMEM));
        }
        let hints = Infos { list: hints, free: calls.freeinfo };
        // SAFETY: a complete entry, alone in its list, whose texts are freed with it by
        // free(3).
        unsafe {
            let hints = &mut *hints.list;
            hints.mode = u64::MAX;
            if fitting {
                hints.caps = FI_MSG | FI_RMA;
                let modes = MR_LOCAL | MR_VIRT_ADDR | MR_ALLOCATED | MR_PROV_KEY;
                (*hints.domain_attr).mr_mode = modes | if device_memory { MR_HMEM } else { 0 };
                hints.caps |= if device_memory { FI_HMEM } else { 0 };
            } else {
                (*hints.domain_attr).mr_mode = !3;
            }
            if let Some(provider) = provider {
                let name = CString::new(provider).map_err(|_| {
                    BackendError::new(call(), libc::EINVAL).with_hint("a name with a NUL in it")
                })?;
                (*hints.fabric_attr).prov_name = libc::strdup(name.as_ptr());
            }
        }
        let mut list = null_mut();
        // SAFETY: hints as fi_allocinfo makes them; gives a list to free.
        let answer =
            unsafe { (calls.getinfo)(abi::API_VERSION, null(), null(), 0, hints.list, &raw mut list) };
        match answer {
            0 => Ok(Infos { list, free: calls.freeinfo }),
            error => Err(calls.failed(call(), error)),
        }
    }

    fn iter(&self) -> impl Iterator<Item = NonNull<Info>> + '_ {
        // SAFETY: entries of a list that lives as long as `self`.
        std::iter::successors(NonNull::new(self.list), |info| NonNull::new(unsafe { info.as_ref().next }))
    }
}

impl Drop for Infos {
    fn drop(&mut self) {
        // SAFETY: from libfabric, once.
        unsafe { (self.free)(self.list) };
    }
}

fn none_there(calls: &Calls, provider: Option<&str>, device_memory: bool) -> OpenError {
    let mut there = Vec::new();
    for info in Infos::get(calls, None, false, false).iter().flat_map(Infos::iter) {
        // SAFETY: an entry of a list that is not freed meanwhile.
        there.push(unsafe { text((*info.as_ref().fabric_attr).prov_name) });
    }
    there.sort();
    there.dedup();
    match provider {
        Some(name) if there.iter().any(|other| other == name) => OpenError::Unsupported {
            who: format!("libfabric's provider {name}"),
            what: if device_memory {
                "registered device memory (FI_HMEM) in a domain"
            } else {
                "remote access to memory that is registered with a domain alone"
            },
            remedy: if device_memory {
                "open it without, or with a libfabric that was built for CUDA"
            } else {
                "its registrations need an endpoint; layer it (such as verbs;ofi_rxm), or use another provider"
            },
        },
        _ => OpenError::NoProvider { name: provider.unwrap_or("any").to_owned(), there },
    }
}

/// # Safety
/// Null, or a text that 0 ends.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
