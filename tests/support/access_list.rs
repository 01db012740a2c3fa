//! POSIX access control lists (acl(5)) in the binary form of the kernel's xattrs.

/// Builds a list that grants `permissions` to user 4242 and otherwise equals mode 0644.
pub(crate) fn build_access_list(permissions: u16) -> Vec<u8> {
    // Owner, a named user, group, mask, others (linux/posix_acl_xattr.h, version 2).
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, !0), (2, permissions, 4242), (4, 4, !0), (0x10, permissions, !0), (0x20, 4, !0)];

    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }

    list
}
