"""PS ranks and the calls to them: in this process (``local``), or in other processes over torch RPC (``rpc``).

What ranks do: ``server``, ``replicas``, ``saver``, ``compute``. How they are asked: ``protocol``, ``wire``, ``local``,
``rpc``. Who takes part, and who is lost: ``members``, ``world``, ``group``, ``link``, ``trainer_watch``, ``deadlines``.
Their processes: ``launcher``, ``rank_process``. What is told to the supervisor: ``supervisor``, ``supervisor_client``.
A launcher is an entry in ``run/assemble.py``; nothing else here is to be extended. ``group``, ``rpc`` and
``rank_process`` alone use torch's communication.
"""
